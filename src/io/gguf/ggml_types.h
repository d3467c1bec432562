// GGUF files have these element types, which are converted to F32: blocks of a fixed number of
// values with shared scales (the formats of ggml, https://github.com/ggml-org/ggml).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvlathe {

// The numbers are those of the files.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBf16 = 30,
  kMxfp4 = 39,
};

// A block of `block_values` values takes `block_bytes` bytes.
struct GgmlLayout {
  std::string_view name;  // as llama.cpp writes it: "Q4_K"
  int64_t block_values;
  int64_t block_bytes;
};
const GgmlLayout& LayoutOf(GgmlType type);

// The type of a file's number; none if this build does not read it.
std::optional<GgmlType> GgmlTypeOf(uint32_t number);
// The name of any number that ggml gives a type, or "type N".
std::string GgmlTypeName(uint32_t number);
// The layout of any number that ggml gives a type today, read by this build or not.
std::optional<GgmlLayout> KnownGgmlLayout(uint32_t number);

// n values, a multiple of the type's block_values, as F32: bit for bit what the `dequantize` of the
// Python package `gguf` gives. `from` needs no alignment.
void DequantizeBlocks(GgmlType type, const std::byte* from, int64_t n, float* to);

// Whether all n values are finite, a multiple of block_values: looks at scales alone where values
// have some. The exponent 255 of MXFP4 is a NaN by the standard of the format, so its values are
// not finite, whatever DequantizeBlocks makes of them.
bool AllFinite(GgmlType type, const std::byte* from, int64_t n);

}  // namespace kvlathe
