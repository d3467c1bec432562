#include "io/gguf/gguf_writer.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/byte_reader.h"

namespace kvlathe {
namespace {

constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr uint32_t kVersion = 3;

void AppendText(std::string_view text, std::string* out) {
  AppendBytes<uint64_t>(text.size(), out);
  out->append(text);
}

template <typename T>
void AppendNumber(GgufValueType type, T value, std::string* out) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kBool:
      return AppendBytes(static_cast<uint8_t>(value), out);
    case GgufValueType::kInt8:
      return AppendBytes(static_cast<int8_t>(value), out);
    case GgufValueType::kUint16:
      return AppendBytes(static_cast<uint16_t>(value), out);
    case GgufValueType::kInt16:
      return AppendBytes(static_cast<int16_t>(value), out);
    case GgufValueType::kUint32:
      return AppendBytes(static_cast<uint32_t>(value), out);
    case GgufValueType::kInt32:
      return AppendBytes(static_cast<int32_t>(value), out);
    case GgufValueType::kUint64:
      return AppendBytes(static_cast<uint64_t>(value), out);
    case GgufValueType::kInt64:
      return AppendBytes(static_cast<int64_t>(value), out);
    case GgufValueType::kFloat32:
      return AppendBytes(static_cast<float>(value), out);
    case GgufValueType::kFloat64:
      return AppendBytes(static_cast<double>(value), out);
    case GgufValueType::kText:
    case GgufValueType::kArray:
      break;
  }
  KVL_CHECK(false);  // no type of numbers
}

template <typename T>
constexpr GgufValueType kTypeOf = GgufValueType::kText;
template <>
constexpr GgufValueType kTypeOf<bool> = GgufValueType::kBool;
template <>
constexpr GgufValueType kTypeOf<int64_t> = GgufValueType::kUint32;
template <>
constexpr GgufValueType kTypeOf<double> = GgufValueType::kFloat32;

struct ValueWriter {
  std::optional<GgufValueType> number_type;
  std::string* out;

  template <typename T>
  GgufValueType TypeOf() const {
    const bool is_number = std::is_same_v<T, int64_t> || std::is_same_v<T, double>;
    return is_number && number_type ? *number_type : kTypeOf<T>;
  }
  template <typename T>
  void AppendValue(const T& value) const {
    if constexpr (std::is_same_v<T, std::string_view>) {
      AppendText(value, out);
    } else {
      AppendNumber(TypeOf<T>(), value, out);
    }
  }

  template <typename T>
  void operator()(const T& value) const {
    AppendBytes(TypeOf<T>(), out);
    AppendValue(value);
  }
  template <typename T>
  void operator()(const std::vector<T>& values) const {
    AppendBytes(GgufValueType::kArray, out);
    AppendBytes(TypeOf<T>(), out);
    AppendBytes<uint64_t>(values.size(), out);
    for (const T& value : values) AppendValue(value);
  }
};

}  // namespace

void GgufWriter::CopyMetadata(const GgufFile& file) {
  for (const auto& [key, bytes] : file.stored_values()) {
    if (key.starts_with("split.")) continue;
    values_[std::string(key)] = bytes;
    // An opened file has an integer here.
    if (key == kAlignmentKey) alignment_ = std::get<int64_t>(*file.FindValue(key));
  }
}

void GgufWriter::Set(std::string_view key, const GgufValue& value,
                     std::optional<GgufValueType> number_type) {
  std::string bytes;
  std::visit(ValueWriter{number_type, &bytes}, value);
  values_[std::string(key)] = std::move(bytes);
  if (key == kAlignmentKey) alignment_ = std::get<int64_t>(value);
}

void GgufWriter::AddTensor(std::string_view name, GgmlType type, std::vector<int64_t> shape) {
  KVL_CHECK(!file_.has_value());
  const GgmlLayout& layout = LayoutOf(type);
  int64_t n_elements = 1;
  for (const int64_t n : shape) n_elements *= n;
  KVL_CHECK_EQ((shape.empty() ? 1 : shape.back()) % layout.block_values, 0);
  tensors_.push_back({std::string(name), type, std::move(shape),
                      n_elements / layout.block_values * layout.block_bytes});
}

std::string GgufWriter::Header() const {
  std::string header = "GGUF";
  AppendBytes(kVersion, &header);
  AppendBytes<uint64_t>(tensors_.size(), &header);
  AppendBytes<uint64_t>(values_.size(), &header);
  for (const auto& [key, bytes] : values_) {
    AppendText(key, &header);
    header += bytes;
  }
  int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendText(tensor.name, &header);
    AppendBytes(static_cast<uint32_t>(tensor.shape.size()), &header);
    for (size_t i = tensor.shape.size(); i > 0; --i) AppendBytes(tensor.shape[i - 1], &header);
    AppendBytes(tensor.type, &header);
    AppendBytes(offset, &header);
    offset += tensor.n_bytes + Padding(tensor.n_bytes);
  }
  header.append(static_cast<size_t>(Padding(std::ssize(header))), '\0');
  return header;
}

Status GgufWriter::Begin(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  file_.emplace(std::move(file));
  const std::string header = Header();
  n_bytes_ = std::ssize(header);
  for (const Tensor& tensor : tensors_) n_bytes_ += tensor.n_bytes + Padding(tensor.n_bytes);
  return file_->Write(header.data(), std::ssize(header));
}

Status GgufWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  KVL_CHECK(file_.has_value() && tensor_idx_ < tensors_.size());
  const int64_t n_bytes = tensors_[tensor_idx_].n_bytes;
  n_appended_ += std::ssize(bytes);
  KVL_CHECK(n_appended_ <= n_bytes);
  KVL_RETURN_IF_ERROR(file_->Write(bytes.data(), std::ssize(bytes)));
  if (n_appended_ < n_bytes) return OkStatus();
  ++tensor_idx_;
  n_appended_ = 0;
  return WriteZeros(Padding(n_bytes));
}

Status GgufWriter::WriteZeros(int64_t n_bytes) {
  const std::vector<std::byte> zeros(static_cast<size_t>(n_bytes));
  return file_->Write(zeros.data(), n_bytes);
}

Status GgufWriter::Commit() {
  KVL_CHECK(file_.has_value() && tensor_idx_ == tensors_.size());
  return file_->Commit();
}

}  // namespace kvlathe
