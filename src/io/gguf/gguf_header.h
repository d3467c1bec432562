// The header of a GGUF file is what stands before its data: version, metadata and where each tensor
// lies.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"

namespace kvlathe {

inline constexpr int kMaxGgufDims = 4;  // ggml's own limit
inline constexpr int64_t kMaxGgufTensors = 1 << 20;
inline constexpr int64_t kDefaultGgufAlignment = 32;  // the format's
inline constexpr int64_t kMaxGgufAlignment = 1 << 20;
// The most values in all arrays of a file together; the largest vocabularies have two million with
// their merges.
inline constexpr int64_t kMaxGgufArrayValues = 1 << 24;

// The numbers are those of the files.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kText = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufTensorEntry {
  uint32_t type = 0;           // a number of ggml
  std::vector<int64_t> shape;  // row-major, the fastest dimension last
  int64_t begin = 0;           // bytes from the start of the file
  int64_t n_bytes = 0;         // 0 if the layout of the type is not known
};

// Texts are views into the file.
struct GgufHeader {
  uint32_t version = 0;
  int64_t alignment = kDefaultGgufAlignment;
  std::map<std::string_view, GgufValue> metadata;
  // The bytes of each value in the file: the number of its type, then the value.
  std::map<std::string_view, std::string_view> stored_values;
  std::map<std::string_view, GgufTensorEntry> tensors;
};

// `file` is the whole file; only the part before the data is read. On success every tensor whose
// layout is known has the bytes that its shape and type need, begins at a multiple of the
// alignment, lies in the file and shares no byte with another. Every error is one printable line
// that starts with `path`.
StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file, std::string_view path);

}  // namespace kvlathe
