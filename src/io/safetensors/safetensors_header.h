// A safetensors file begins with a header: 8 bytes of length (little endian), JSON, then the data.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace kvlathe {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr int64_t kMaxSafetensorsTensors = 1 << 20;
inline constexpr int kMaxSafetensorsDims = 32;

struct SafetensorsEntry {
  std::string dtype_name;      // of the format: "BF16", "I64", ...
  std::optional<DType> dtype;  // empty if the format knows dtype_name and this project does not
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the file
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// `file` is the whole file; only the header is read. On success every entry lies in the file, has
// the bytes that its shape and dtype need, and the entries tile the data without gap or overlap.
// Every error is one printable line that starts with `path` and names the tensor where there is
// one: kDataLoss, or kUnimplemented for a dtype that the format does not know.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                   std::string_view path);

// A name from a file, in quotes, escaped and shortened so that a message stays one line.
std::string QuoteForMessage(std::string_view name);

std::string ShapeToString(const std::vector<int64_t>& shape);  // "[2, 3]"

}  // namespace kvlathe
