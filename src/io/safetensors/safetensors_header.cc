#include "io/safetensors/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"

namespace kvlathe {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;

struct KnownDType {
  std::string_view name;
  int n_bits;
  std::optional<DType> dtype;
};

constexpr KnownDType kKnownDTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBf16},
    {"BOOL", 8, {}},
    {"U8", 8, {}},
    {"I8", 8, {}},
    {"U16", 16, {}},
    {"I16", 16, {}},
    {"U32", 32, {}},
    {"I32", 32, {}},
    {"U64", 64, {}},
    {"I64", 64, {}},
    {"F64", 64, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

const KnownDType* FindDType(std::string_view name) {
  const auto* found = std::ranges::find(kKnownDTypes, name, &KnownDType::name);
  return found == std::end(kKnownDTypes) ? nullptr : found;
}

// Bytes of a tensor, or nothing if the product overflows or does not fill whole bytes.
std::optional<int64_t> BytesOf(const std::vector<int64_t>& shape, int n_bits) {
  int64_t n_elements = 1;
  for (const int64_t n : shape) {
    if (__builtin_mul_overflow(n_elements, n, &n_elements)) return std::nullopt;
  }
  int64_t total_bits = 0;
  if (__builtin_mul_overflow(n_elements, int64_t{n_bits}, &total_bits)) return std::nullopt;
  if (total_bits % 8 != 0) return std::nullopt;
  return total_bits / 8;
}

// Takes the header's JSON event by event: the schema is fixed, so nothing is built that is not
// wanted, and a name that comes twice is seen (a JSON tree would keep the last one).
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  // What is wrong, without the path. Empty as long as all is well.
  const std::string& problem() const { return problem_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(double, const std::string&) override {
    return Unexpected("a number that is no 64-bit integer");
  }
  bool binary(Json::binary_t&) override { return Unexpected("binary data"); }
  bool number_integer(int64_t value) override {
    return Fail("{}{} is negative", FieldPrefix(), value);
  }
  bool number_unsigned(uint64_t value) override;
  bool string(std::string& value) override;
  bool start_object(size_t) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail("the header is not valid JSON at byte {}", position);
  }

 private:
  // Where the reader stands. kTensor and below belong to tensor_name_.
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets };

  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    problem_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }
  bool Unexpected(const char* what) { return Fail("{}unexpected {}", FieldPrefix(), what); }
  std::string FieldPrefix() const {
    std::string prefix;
    if (place_ >= Place::kTensor)
      prefix = fmt::format("tensor {}: ", QuoteForMessage(tensor_name_));
    if (!field_.empty()) prefix += QuoteForMessage(field_) + ": ";
    return prefix;
  }
  bool StartTensor(std::string& name);
  bool StartField();

  SafetensorsHeader& header_;
  std::string problem_;
  Place place_ = Place::kStart;
  std::string field_;  // the key whose value comes next
  std::string tensor_name_;
  SafetensorsEntry entry_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int n_offsets_ = 0;
};

bool HeaderReader::number_unsigned(uint64_t value) {
  if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("number");
  if (value > static_cast<uint64_t>(INT64_MAX))
    return Fail("{}{} is too large", FieldPrefix(), value);
  const auto number = static_cast<int64_t>(value);
  if (place_ == Place::kShape) {
    if (entry_.shape.size() == kMaxSafetensorsDims) {
      return Fail("{}more than {} dimensions", FieldPrefix(), kMaxSafetensorsDims);
    }
    entry_.shape.push_back(number);
    return true;
  }
  if (n_offsets_ == 2) return Fail("{}more than two numbers", FieldPrefix());
  (n_offsets_++ == 0 ? entry_.begin : entry_.end) = number;
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (place_ == Place::kMetadata) {
    header_.metadata.emplace(std::move(field_), std::move(value));
    field_.clear();
    return true;
  }
  if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("string");
  entry_.dtype_name = std::move(value);
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kRoot;
    return true;
  }
  if (place_ != Place::kRoot) return Unexpected("object");
  if (field_ == "__metadata__") {
    place_ = Place::kMetadata;
  } else {
    place_ = Place::kTensor;
    tensor_name_ = std::move(field_);
    entry_ = {};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    n_offsets_ = 0;
  }
  field_.clear();
  return true;
}

bool HeaderReader::StartTensor(std::string& name) {
  if (header_.entries.contains(name)) {
    return Fail("tensor {}: the name comes twice", QuoteForMessage(name));
  }
  if (std::ssize(header_.entries) == kMaxSafetensorsTensors) {
    return Fail("more than {} tensors", kMaxSafetensorsTensors);
  }
  return true;
}

bool HeaderReader::StartField() {
  bool* seen = field_ == "dtype"          ? &has_dtype_
               : field_ == "shape"        ? &has_shape_
               : field_ == "data_offsets" ? &has_offsets_
                                          : nullptr;
  if (seen == nullptr) return Fail("{}unknown field", FieldPrefix());
  if (std::exchange(*seen, true)) return Fail("{}the field comes twice", FieldPrefix());
  return true;
}

bool HeaderReader::key(std::string& name) {
  field_ = name;
  if (place_ == Place::kRoot) return name == "__metadata__" || StartTensor(name);
  if (place_ == Place::kTensor) return StartField();
  if (header_.metadata.contains(name)) {
    return Fail("metadata {}: the name comes twice", QuoteForMessage(name));
  }
  return true;
}

bool HeaderReader::end_object() {
  field_.clear();
  if (place_ == Place::kTensor) {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return Fail("{}no {}", FieldPrefix(),
                  !has_dtype_   ? "dtype"
                  : !has_shape_ ? "shape"
                                : "data_offsets");
    }
    header_.entries.emplace(tensor_name_, std::move(entry_));
  }
  place_ = Place::kRoot;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::kTensor) return Unexpected("array");
  if (field_ == "shape") {
    place_ = Place::kShape;
  } else if (field_ == "data_offsets") {
    place_ = Place::kOffsets;
  } else {
    return Unexpected("array");
  }
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::kOffsets && n_offsets_ != 2) {
    return Fail("{}{} numbers instead of two", FieldPrefix(), n_offsets_);
  }
  place_ = Place::kTensor;
  return true;
}

// Checks one entry on its own, with offsets still relative to the data.
Status CheckEntry(const std::string& name, int64_t data_bytes, std::string_view path,
                  SafetensorsEntry& entry) {
  const KnownDType* known = FindDType(entry.dtype_name);
  if (known == nullptr) {
    return Error(StatusCode::kUnimplemented, "{}: tensor {}: unknown dtype {}", path,
                 QuoteForMessage(name), QuoteForMessage(entry.dtype_name));
  }
  entry.dtype = known->dtype;
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return Error(StatusCode::kDataLoss,
                 "{}: tensor {}: bytes {} to {} are not in the {} bytes of data; the file is "
                 "truncated or damaged, fetch it again",
                 path, QuoteForMessage(name), entry.begin, entry.end, data_bytes);
  }
  const std::optional<int64_t> n_bytes = BytesOf(entry.shape, known->n_bits);
  if (!n_bytes || *n_bytes != entry.end - entry.begin) {
    return Error(StatusCode::kDataLoss, "{}: tensor {}: {} bytes do not hold {} of shape {}", path,
                 QuoteForMessage(name), entry.end - entry.begin, known->name,
                 ShapeToString(entry.shape));
  }
  return OkStatus();
}

// The format allows neither holes nor shared bytes.
Status CheckTiling(const SafetensorsHeader& header, int64_t data_bytes, std::string_view path) {
  using NamedEntry = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const NamedEntry*> in_order;
  in_order.reserve(header.entries.size());
  for (const NamedEntry& named : header.entries) in_order.push_back(&named);
  std::ranges::sort(in_order, {}, [](const NamedEntry* named) {
    return std::pair(named->second.begin, named->second.end);
  });
  int64_t expected = 0;
  for (const NamedEntry* named : in_order) {
    const auto& [name, entry] = *named;
    if (entry.begin != expected) {
      return Error(
          StatusCode::kDataLoss, "{}: tensor {}: starts at byte {} of the data, {} {}", path,
          QuoteForMessage(name), entry.begin,
          entry.begin < expected ? "inside the tensor that ends at" : "after a hole that begins at",
          expected);
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    return Error(StatusCode::kDataLoss, "{}: {} bytes of data, but the tensors end at byte {}",
                 path, data_bytes, expected);
  }
  return OkStatus();
}

}  // namespace

StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                   std::string_view path) {
  const auto damaged = [&](std::string_view problem) {
    return Error(StatusCode::kDataLoss, "{}: not a safetensors file: {}", path, problem);
  };
  const auto file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kLengthBytes) {
    return damaged(fmt::format("{} bytes are too few for a header", file_bytes));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return damaged(fmt::format("a header of {} bytes, the most is {}", header_bytes,
                               kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > static_cast<uint64_t>(file_bytes - kLengthBytes)) {
    return damaged(fmt::format("a header of {} bytes in a file of {}; the file is truncated",
                               header_bytes, file_bytes));
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              header_bytes);
  if (!json.starts_with('{')) return damaged("the header does not start with '{'");
  // The parser takes a NUL byte for the end of its input.
  if (json.find('\0') != std::string_view::npos) return damaged("the header has a NUL byte");

  SafetensorsHeader header;
  HeaderReader reader(header);
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) {
    return Error(StatusCode::kDataLoss, "{}: {}", path, reader.problem());
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file_bytes - data_begin;
  for (auto& [name, entry] : header.entries) {
    KVL_RETURN_IF_ERROR(CheckEntry(name, data_bytes, path, entry));
  }
  KVL_RETURN_IF_ERROR(CheckTiling(header, data_bytes, path));
  for (auto& [name, entry] : header.entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return header;
}

std::string QuoteForMessage(std::string_view name) {
  constexpr size_t kMaxChars = 100;
  return fmt::format("'{}{}'", absl::CHexEscape({name.data(), std::min(name.size(), kMaxChars)}),
                     name.size() > kMaxChars ? "..." : "");
}

std::string ShapeToString(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace kvlathe
