#include "io/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "io/byte_reader.h"
#include "io/safetensors_header.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kLfsPointer = "version https://git-lfs";
constexpr uint64_t kMostSigned = INT64_MAX;
// The fewest bytes of a key (length, name, type, value) and of a tensor (length, name, number of
// dimensions, type, offset): what the counts at the start of the file are bounded with.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, std::string_view path)
      : file_(file), path_(path), reader_(file) {}

  StatusOr<GgufHeader> Read();

 private:
  template <typename... Args>
  Status Damaged(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kDataLoss, "{}: {}; the file is damaged, download it again", path_,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  Status Truncated(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kDataLoss,
                 "{}: {} bytes end {}; the file is truncated or damaged, download it again", path_,
                 file_.size(), fmt::format(format, std::forward<Args>(args)...));
  }
  uint64_t bytes_left() const { return reader_.rest().size(); }

  Status ReadMagic() const;
  Status ReadVersion();
  Status ReadCounts(uint64_t* n_tensors, uint64_t* n_keys);
  // False if the length passes the end of the file.
  bool ReadText(std::string_view* text);
  Status ReadKey();
  Status ReadValue(std::string_view key, uint32_t type, GgufValue* value);
  template <typename T>
  Status ReadInteger(std::string_view key, GgufValue* value);
  template <typename T>
  Status ReadFloat(std::string_view key, GgufValue* value);
  Status ReadBool(std::string_view key, GgufValue* value);
  Status ReadArray(std::string_view key, GgufValue* value);
  Status ReadElements(std::string_view key, uint32_t type, uint64_t n_values, GgufValue* value);
  template <typename T, typename To>
  Status ReadNumbers(std::string_view key, uint64_t n_values, GgufValue* value);
  Status ReadBools(std::string_view key, uint64_t n_values, GgufValue* value);
  Status ReadTexts(std::string_view key, uint64_t n_values, GgufValue* value);
  Status ReadAlignment();
  Status ReadTensor();
  Status ReadShape(std::string_view name, GgufTensorEntry* entry);
  Status MeasureTensor(std::string_view name, GgufTensorEntry* entry) const;
  Status PlaceTensors();
  Status CheckOverlaps() const;

  std::span<const std::byte> file_;
  std::string_view path_;
  ByteReader reader_;
  GgufHeader header_;
  int64_t n_array_values_ = 0;
};

StatusOr<GgufHeader> HeaderReader::Read() {
  KVL_RETURN_IF_ERROR(ReadMagic());
  KVL_RETURN_IF_ERROR(ReadVersion());
  uint64_t n_tensors = 0, n_keys = 0;
  KVL_RETURN_IF_ERROR(ReadCounts(&n_tensors, &n_keys));
  for (uint64_t i = 0; i < n_keys; ++i) KVL_RETURN_IF_ERROR(ReadKey());
  KVL_RETURN_IF_ERROR(ReadAlignment());
  for (uint64_t i = 0; i < n_tensors; ++i) KVL_RETURN_IF_ERROR(ReadTensor());
  KVL_RETURN_IF_ERROR(PlaceTensors());
  KVL_RETURN_IF_ERROR(CheckOverlaps());
  return std::move(header_);
}

Status HeaderReader::ReadMagic() const {
  const std::string_view begin(reinterpret_cast<const char*>(file_.data()),
                               std::min(file_.size(), kLfsPointer.size()));
  if (begin.starts_with(kMagic)) return OkStatus();
  if (begin.empty()) {
    return Error(StatusCode::kDataLoss, "{}: the file is empty; download it again", path_);
  }
  if (begin == kLfsPointer) {
    return Error(StatusCode::kDataLoss,
                 "{}: this is the pointer that Git LFS keeps in place of the file; download the "
                 "file itself",
                 path_);
  }
  return Error(
      StatusCode::kDataLoss,
      "{}: not a GGUF file: it begins with {} instead of 'GGUF'; download it again or name "
      "another file",
      path_, QuoteForMessage(begin.substr(0, kMagic.size())));
}

Status HeaderReader::ReadVersion() {
  std::string_view magic;
  reader_.ReadBytes(kMagic.size(), &magic);
  if (!reader_.Read(&header_.version)) return Truncated("before the version");
  const uint32_t version = header_.version;
  if (version == 2 || version == 3) return OkStatus();
  if (version == 0) return Damaged("version 0 of GGUF does not exist");
  if ((version & 0xffff) == 0) {
    return Error(StatusCode::kUnimplemented,
                 "{}: a big-endian GGUF file; only little-endian ones are read: convert it with "
                 "gguf-convert-endian of the Python package gguf",
                 path_);
  }
  return Error(StatusCode::kUnimplemented, "{}: version {} of GGUF; versions 2 and 3 are read: {}",
               path_, version,
               version == 1 ? "convert the model again with a present llama.cpp"
                            : "the file is damaged or newer than this build");
}

// Bounds both by the bytes that are left, so that nothing is reserved for what is not there.
Status HeaderReader::ReadCounts(uint64_t* n_tensors, uint64_t* n_keys) {
  if (!reader_.Read(n_tensors) || !reader_.Read(n_keys)) return Truncated("inside the counts");
  if (*n_keys > bytes_left() / kMinKeyBytes) {
    return Truncated("before {} keys can", *n_keys);
  }
  if (*n_tensors > bytes_left() / kMinTensorBytes) {
    return Truncated("before {} tensors can", *n_tensors);
  }
  if (*n_tensors > static_cast<uint64_t>(kMaxGgufTensors)) {
    return Error(StatusCode::kUnimplemented, "{}: {} tensors; the most that are read is {}", path_,
                 *n_tensors, kMaxGgufTensors);
  }
  return OkStatus();
}

bool HeaderReader::ReadText(std::string_view* text) {
  uint64_t n_bytes = 0;
  return reader_.Read(&n_bytes) && reader_.ReadBytes(n_bytes, text);
}

Status HeaderReader::ReadKey() {
  std::string_view key;
  uint32_t type = 0;
  if (!ReadText(&key)) return Truncated("inside key {}", header_.metadata.size());
  if (!reader_.Read(&type)) return Truncated("inside key {}", QuoteForMessage(key));
  const auto [at, is_new] = header_.metadata.try_emplace(key);
  if (!is_new) return Damaged("key {} comes twice", QuoteForMessage(key));
  return ReadValue(key, type, &at->second);
}

Status HeaderReader::ReadValue(std::string_view key, uint32_t type, GgufValue* value) {
  switch (static_cast<GgufValueType>(type)) {
    case GgufValueType::kUint8:
      return ReadInteger<uint8_t>(key, value);
    case GgufValueType::kInt8:
      return ReadInteger<int8_t>(key, value);
    case GgufValueType::kUint16:
      return ReadInteger<uint16_t>(key, value);
    case GgufValueType::kInt16:
      return ReadInteger<int16_t>(key, value);
    case GgufValueType::kUint32:
      return ReadInteger<uint32_t>(key, value);
    case GgufValueType::kInt32:
      return ReadInteger<int32_t>(key, value);
    case GgufValueType::kUint64:
      return ReadInteger<uint64_t>(key, value);
    case GgufValueType::kInt64:
      return ReadInteger<int64_t>(key, value);
    case GgufValueType::kFloat32:
      return ReadFloat<float>(key, value);
    case GgufValueType::kFloat64:
      return ReadFloat<double>(key, value);
    case GgufValueType::kBool:
      return ReadBool(key, value);
    case GgufValueType::kArray:
      return ReadArray(key, value);
    case GgufValueType::kText: {
      std::string_view text;
      if (!ReadText(&text)) return Truncated("inside the text of key {}", QuoteForMessage(key));
      *value = text;
      return OkStatus();
    }
  }
  return Damaged("key {} has a value of type {}, which GGUF lacks", QuoteForMessage(key), type);
}

template <typename T>
Status HeaderReader::ReadInteger(std::string_view key, GgufValue* value) {
  T number = 0;
  if (!reader_.Read(&number)) return Truncated("inside the value of key {}", QuoteForMessage(key));
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (number > kMostSigned) {
      return Error(StatusCode::kUnimplemented, "{}: key {} is {}; the most that is read is {}",
                   path_, QuoteForMessage(key), number, kMostSigned);
    }
  }
  *value = static_cast<int64_t>(number);
  return OkStatus();
}

template <typename T>
Status HeaderReader::ReadFloat(std::string_view key, GgufValue* value) {
  T number = 0;
  if (!reader_.Read(&number)) return Truncated("inside the value of key {}", QuoteForMessage(key));
  *value = static_cast<double>(number);
  return OkStatus();
}

Status HeaderReader::ReadBool(std::string_view key, GgufValue* value) {
  uint8_t byte = 0;
  if (!reader_.Read(&byte)) return Truncated("inside the value of key {}", QuoteForMessage(key));
  if (byte > 1) {
    return Damaged("key {} is {}, but must be 0 or 1 as a bool", QuoteForMessage(key), byte);
  }
  *value = byte == 1;
  return OkStatus();
}

Status HeaderReader::ReadArray(std::string_view key, GgufValue* value) {
  uint32_t type = 0;
  uint64_t n_values = 0;
  if (!reader_.Read(&type) || !reader_.Read(&n_values)) {
    return Truncated("inside the array of key {}", QuoteForMessage(key));
  }
  // Every value takes a byte or more, so the sum cannot overflow.
  if (n_values > bytes_left()) {
    return Truncated("before {} values of key {} can", n_values, QuoteForMessage(key));
  }
  n_array_values_ += static_cast<int64_t>(n_values);
  if (n_array_values_ > kMaxGgufArrayValues) {
    return Error(StatusCode::kUnimplemented,
                 "{}: key {} is an array of {} values; the most that are read, of all arrays "
                 "together, is {}",
                 path_, QuoteForMessage(key), n_values, kMaxGgufArrayValues);
  }
  return ReadElements(key, type, n_values, value);
}

Status HeaderReader::ReadElements(std::string_view key, uint32_t type, uint64_t n_values,
                                  GgufValue* value) {
  switch (static_cast<GgufValueType>(type)) {
    case GgufValueType::kUint8:
      return ReadNumbers<uint8_t, int64_t>(key, n_values, value);
    case GgufValueType::kInt8:
      return ReadNumbers<int8_t, int64_t>(key, n_values, value);
    case GgufValueType::kUint16:
      return ReadNumbers<uint16_t, int64_t>(key, n_values, value);
    case GgufValueType::kInt16:
      return ReadNumbers<int16_t, int64_t>(key, n_values, value);
    case GgufValueType::kUint32:
      return ReadNumbers<uint32_t, int64_t>(key, n_values, value);
    case GgufValueType::kInt32:
      return ReadNumbers<int32_t, int64_t>(key, n_values, value);
    case GgufValueType::kUint64:
      return ReadNumbers<uint64_t, int64_t>(key, n_values, value);
    case GgufValueType::kInt64:
      return ReadNumbers<int64_t, int64_t>(key, n_values, value);
    case GgufValueType::kFloat32:
      return ReadNumbers<float, double>(key, n_values, value);
    case GgufValueType::kFloat64:
      return ReadNumbers<double, double>(key, n_values, value);
    case GgufValueType::kBool:
      return ReadBools(key, n_values, value);
    case GgufValueType::kText:
      return ReadTexts(key, n_values, value);
    case GgufValueType::kArray:
      return Error(StatusCode::kUnimplemented,
                   "{}: key {} is an array of arrays, which is not read", path_,
                   QuoteForMessage(key));
  }
  return Damaged("key {} is an array of type {}, which GGUF lacks", QuoteForMessage(key), type);
}

template <typename T, typename To>
Status HeaderReader::ReadNumbers(std::string_view key, uint64_t n_values, GgufValue* value) {
  std::string_view bytes;
  // n_values is at most the bytes left, so the product does not overflow for a file below 2^60.
  if (n_values > bytes_left() / sizeof(T) || !reader_.ReadBytes(n_values * sizeof(T), &bytes)) {
    return Truncated("before {} values of key {} can", n_values, QuoteForMessage(key));
  }
  std::vector<To>& numbers = value->emplace<std::vector<To>>(n_values);
  for (size_t i = 0; i < n_values; ++i) {
    T number;
    std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (number > kMostSigned) {
        return Error(StatusCode::kUnimplemented,
                     "{}: value {} of key {} is {}; the most that is read is {}", path_, i,
                     QuoteForMessage(key), number, kMostSigned);
      }
    }
    numbers[i] = static_cast<To>(number);
  }
  return OkStatus();
}

Status HeaderReader::ReadBools(std::string_view key, uint64_t n_values, GgufValue* value) {
  KVL_RETURN_IF_ERROR((ReadNumbers<uint8_t, int64_t>(key, n_values, value)));
  for (const int64_t number : std::get<std::vector<int64_t>>(*value)) {
    if (number > 1) {
      return Damaged("key {} has a value {}, but must be 0 or 1 as a bool", QuoteForMessage(key),
                     number);
    }
  }
  return OkStatus();
}

Status HeaderReader::ReadTexts(std::string_view key, uint64_t n_values, GgufValue* value) {
  if (n_values > bytes_left() / sizeof(uint64_t)) {
    return Truncated("before {} texts of key {} can", n_values, QuoteForMessage(key));
  }
  std::vector<std::string_view>& texts =
      value->emplace<std::vector<std::string_view>>(static_cast<size_t>(n_values));
  for (size_t i = 0; i < n_values; ++i) {
    if (!ReadText(&texts[i])) return Truncated("inside text {} of key {}", i, QuoteForMessage(key));
  }
  return OkStatus();
}

Status HeaderReader::ReadAlignment() {
  const auto found = header_.metadata.find("general.alignment");
  if (found == header_.metadata.end()) return OkStatus();
  const int64_t* alignment = std::get_if<int64_t>(&found->second);
  if (alignment == nullptr) return Damaged("general.alignment is no integer");
  if (*alignment < 1 || *alignment > kMaxGgufAlignment || (*alignment & (*alignment - 1)) != 0) {
    return Damaged("general.alignment is {}, but must be a power of two up to {}", *alignment,
                   kMaxGgufAlignment);
  }
  header_.alignment = *alignment;
  return OkStatus();
}

Status HeaderReader::ReadTensor() {
  std::string_view name;
  if (!ReadText(&name)) return Truncated("inside the name of tensor {}", header_.tensors.size());
  const auto [at, is_new] = header_.tensors.try_emplace(name);
  if (!is_new) return Damaged("tensor {} comes twice", QuoteForMessage(name));
  GgufTensorEntry& entry = at->second;
  KVL_RETURN_IF_ERROR(ReadShape(name, &entry));
  uint64_t offset = 0;
  if (!reader_.Read(&entry.type) || !reader_.Read(&offset)) {
    return Truncated("inside the description of tensor {}", QuoteForMessage(name));
  }
  KVL_RETURN_IF_ERROR(MeasureTensor(name, &entry));
  if (offset % static_cast<uint64_t>(header_.alignment) != 0) {
    return Damaged("tensor {} begins at byte {} of the data, which is no multiple of {}",
                   QuoteForMessage(name), offset, header_.alignment);
  }
  if (offset > static_cast<uint64_t>(std::ssize(file_))) {
    return Truncated("before byte {} of the data, where tensor {} begins", offset,
                     QuoteForMessage(name));
  }
  entry.begin = static_cast<int64_t>(offset);
  return OkStatus();
}

Status HeaderReader::ReadShape(std::string_view name, GgufTensorEntry* entry) {
  uint32_t n_dims = 0;
  if (!reader_.Read(&n_dims)) {
    return Truncated("inside the shape of tensor {}", QuoteForMessage(name));
  }
  if (n_dims > static_cast<uint32_t>(kMaxGgufDims)) {
    return Damaged("tensor {} has {} dimensions, the most is {}", QuoteForMessage(name), n_dims,
                   kMaxGgufDims);
  }
  entry->shape.resize(n_dims);
  for (int64_t& n : entry->shape) {
    uint64_t dim = 0;
    if (!reader_.Read(&dim)) {
      return Truncated("inside the shape of tensor {}", QuoteForMessage(name));
    }
    if (dim == 0 || dim > kMostSigned) {
      return Damaged("tensor {} has a dimension of {}", QuoteForMessage(name), dim);
    }
    n = static_cast<int64_t>(dim);
  }
  std::ranges::reverse(entry->shape);
  return OkStatus();
}

// Sets n_bytes.
Status HeaderReader::MeasureTensor(std::string_view name, GgufTensorEntry* entry) const {
  const auto too_large = [&] {
    return Damaged("tensor {} of shape {} has more bytes than can be counted",
                   QuoteForMessage(name), ShapeToString(entry->shape));
  };
  int64_t n_elements = 1;
  for (const int64_t n : entry->shape) {
    if (__builtin_mul_overflow(n_elements, n, &n_elements)) return too_large();
  }
  const std::optional<GgmlLayout> layout = KnownGgmlLayout(entry->type);
  if (!layout) return OkStatus();
  const int64_t row = entry->shape.empty() ? 1 : entry->shape.back();
  if (row % layout->block_values != 0) {
    return Damaged("tensor {} of type {} has rows of {} values, no multiple of {}",
                   QuoteForMessage(name), layout->name, row, layout->block_values);
  }
  if (__builtin_mul_overflow(n_elements / layout->block_values, layout->block_bytes,
                             &entry->n_bytes)) {
    return too_large();
  }
  return OkStatus();
}

// Makes offsets into the data, which begins at the next multiple of the alignment, such into the
// file.
Status HeaderReader::PlaceTensors() {
  if (header_.tensors.empty()) return OkStatus();
  const int64_t file_bytes = std::ssize(file_);
  const int64_t header_bytes = file_bytes - static_cast<int64_t>(bytes_left());
  const int64_t alignment = header_.alignment;
  const int64_t data_begin = (header_bytes + alignment - 1) / alignment * alignment;
  if (data_begin > file_bytes) return Truncated("before the data of the tensors");
  const int64_t data_bytes = file_bytes - data_begin;
  for (auto& [name, entry] : header_.tensors) {
    if (entry.begin > data_bytes || entry.n_bytes > data_bytes - entry.begin) {
      return Truncated("before tensor {} does ({} bytes from byte {} of {} bytes of data)",
                       QuoteForMessage(name), entry.n_bytes, entry.begin, data_bytes);
    }
    entry.begin += data_begin;
  }
  return OkStatus();
}

Status HeaderReader::CheckOverlaps() const {
  using Named = std::pair<const std::string_view, GgufTensorEntry>;
  std::vector<const Named*> in_order;
  for (const Named& named : header_.tensors) {
    if (named.second.n_bytes > 0) in_order.push_back(&named);
  }
  std::ranges::sort(in_order, {}, [](const Named* named) { return named->second.begin; });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const auto& [name, entry] = *in_order[i - 1];
    if (entry.begin + entry.n_bytes > in_order[i]->second.begin) {
      return Damaged("tensors {} and {} share bytes", QuoteForMessage(name),
                     QuoteForMessage(in_order[i]->first));
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file, std::string_view path) {
  return HeaderReader(file, path).Read();
}

}  // namespace kvlathe
