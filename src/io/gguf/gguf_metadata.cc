#include "io/gguf/gguf_metadata.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "io/gguf/gguf_header.h"
#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

constexpr uint64_t kMostSigned = INT64_MAX;

class MetadataReader {
 public:
  MetadataReader(GgufCursor& cursor, GgufHeader* header) : cursor_(cursor), header_(header) {}

  Status ReadKey();

 private:
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

  GgufCursor& cursor_;
  GgufHeader* header_;
  int64_t n_array_values_ = 0;  // of all keys so far
};

Status MetadataReader::ReadKey() {
  std::string_view key;
  uint32_t type = 0;
  if (!cursor_.ReadText(&key)) return cursor_.Truncated("inside key {}", header_->metadata.size());
  const int64_t begin = cursor_.position();
  if (!cursor_.Read(&type)) return cursor_.Truncated("inside key {}", QuoteForMessage(key));
  const auto [at, is_new] = header_->metadata.try_emplace(key);
  if (!is_new) return cursor_.Damaged("key {} comes twice", QuoteForMessage(key));
  KVL_RETURN_IF_ERROR(ReadValue(key, type, &at->second));
  header_->stored_values.emplace(key, cursor_.BytesSince(begin));
  return OkStatus();
}

Status MetadataReader::ReadValue(std::string_view key, uint32_t type, GgufValue* value) {
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
      if (!cursor_.ReadText(&text))
        return cursor_.Truncated("inside the text of key {}", QuoteForMessage(key));
      *value = text;
      return OkStatus();
    }
  }
  return cursor_.Damaged("key {} has a value of type {}, which GGUF lacks", QuoteForMessage(key),
                         type);
}

template <typename T>
Status MetadataReader::ReadInteger(std::string_view key, GgufValue* value) {
  T number = 0;
  if (!cursor_.Read(&number))
    return cursor_.Truncated("inside the value of key {}", QuoteForMessage(key));
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (number > kMostSigned) {
      return cursor_.Unread("key {} is {}; the most that is read is {}", QuoteForMessage(key),
                            number, kMostSigned);
    }
  }
  *value = static_cast<int64_t>(number);
  return OkStatus();
}

template <typename T>
Status MetadataReader::ReadFloat(std::string_view key, GgufValue* value) {
  T number = 0;
  if (!cursor_.Read(&number))
    return cursor_.Truncated("inside the value of key {}", QuoteForMessage(key));
  *value = static_cast<double>(number);
  return OkStatus();
}

Status MetadataReader::ReadBool(std::string_view key, GgufValue* value) {
  uint8_t byte = 0;
  if (!cursor_.Read(&byte))
    return cursor_.Truncated("inside the value of key {}", QuoteForMessage(key));
  if (byte > 1) {
    return cursor_.Damaged("key {} is {}, but must be 0 or 1 as a bool", QuoteForMessage(key),
                           byte);
  }
  *value = byte == 1;
  return OkStatus();
}

Status MetadataReader::ReadArray(std::string_view key, GgufValue* value) {
  uint32_t type = 0;
  uint64_t n_values = 0;
  if (!cursor_.Read(&type) || !cursor_.Read(&n_values)) {
    return cursor_.Truncated("inside the array of key {}", QuoteForMessage(key));
  }
  // Every value takes a byte or more, so the sum cannot overflow.
  if (n_values > cursor_.bytes_left()) {
    return cursor_.Truncated("before {} values of key {} can", n_values, QuoteForMessage(key));
  }
  n_array_values_ += static_cast<int64_t>(n_values);
  if (n_array_values_ > kMaxGgufArrayValues) {
    return cursor_.Unread(
        "key {} is an array of {} values; the most that are read, of all arrays "
        "together, is {}",
        QuoteForMessage(key), n_values, kMaxGgufArrayValues);
  }
  return ReadElements(key, type, n_values, value);
}

Status MetadataReader::ReadElements(std::string_view key, uint32_t type, uint64_t n_values,
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
      return cursor_.Unread("key {} is an array of arrays, which is not read",
                            QuoteForMessage(key));
  }
  return cursor_.Damaged("key {} is an array of type {}, which GGUF lacks", QuoteForMessage(key),
                         type);
}

template <typename T, typename To>
Status MetadataReader::ReadNumbers(std::string_view key, uint64_t n_values, GgufValue* value) {
  std::string_view bytes;
  // n_values is at most the bytes left, so the product does not overflow for a file below 2^60.
  if (n_values > cursor_.bytes_left() / sizeof(T) ||
      !cursor_.ReadBytes(n_values * sizeof(T), &bytes)) {
    return cursor_.Truncated("before {} values of key {} can", n_values, QuoteForMessage(key));
  }
  std::vector<To>& numbers = value->emplace<std::vector<To>>(n_values);
  for (size_t i = 0; i < n_values; ++i) {
    T number;
    std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (number > kMostSigned) {
        return cursor_.Unread("value {} of key {} is {}; the most that is read is {}", i,
                              QuoteForMessage(key), number, kMostSigned);
      }
    }
    numbers[i] = static_cast<To>(number);
  }
  return OkStatus();
}

Status MetadataReader::ReadBools(std::string_view key, uint64_t n_values, GgufValue* value) {
  KVL_RETURN_IF_ERROR((ReadNumbers<uint8_t, int64_t>(key, n_values, value)));
  for (const int64_t number : std::get<std::vector<int64_t>>(*value)) {
    if (number > 1) {
      return cursor_.Damaged("key {} has a value {}, but must be 0 or 1 as a bool",
                             QuoteForMessage(key), number);
    }
  }
  return OkStatus();
}

Status MetadataReader::ReadTexts(std::string_view key, uint64_t n_values, GgufValue* value) {
  if (n_values > cursor_.bytes_left() / sizeof(uint64_t)) {
    return cursor_.Truncated("before {} texts of key {} can", n_values, QuoteForMessage(key));
  }
  std::vector<std::string_view>& texts =
      value->emplace<std::vector<std::string_view>>(static_cast<size_t>(n_values));
  for (size_t i = 0; i < n_values; ++i) {
    if (!cursor_.ReadText(&texts[i]))
      return cursor_.Truncated("inside text {} of key {}", i, QuoteForMessage(key));
  }
  return OkStatus();
}

}  // namespace

Status ReadGgufMetadata(uint64_t n_keys, GgufCursor& cursor, GgufHeader* header) {
  MetadataReader reader(cursor, header);
  for (uint64_t i = 0; i < n_keys; ++i) KVL_RETURN_IF_ERROR(reader.ReadKey());
  return OkStatus();
}

}  // namespace kvlathe
