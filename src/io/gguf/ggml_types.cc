#include "io/gguf/ggml_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/check.h"

namespace kvlathe {
namespace {

struct KnownType {
  GgmlLayout layout;  // block_values is 0 for a type that ggml no longer has
  bool is_read = false;
};

// By the number that files use.
constexpr KnownType kKnownTypes[] = {
    {{"F32", 1, 4}, true},
    {{"F16", 1, 2}, true},
    {{"Q4_0", 32, 2 + 16}, true},
    {{"Q4_1", 32, 2 + 2 + 16}, true},
    {{"Q4_2", 0, 0}},
    {{"Q4_3", 0, 0}},
    {{"Q5_0", 32, 2 + 4 + 16}, true},
    {{"Q5_1", 32, 2 + 2 + 4 + 16}, true},
    {{"Q8_0", 32, 2 + 32}, true},
    {{"Q8_1", 32, 4 + 32}},
    {{"Q2_K", 256, 16 + 64 + 2 + 2}, true},
    {{"Q3_K", 256, 32 + 64 + 12 + 2}, true},
    {{"Q4_K", 256, 2 + 2 + 12 + 128}, true},
    {{"Q5_K", 256, 2 + 2 + 12 + 32 + 128}, true},
    {{"Q6_K", 256, 128 + 64 + 16 + 2}, true},
    {{"Q8_K", 256, 4 + 256 + 32}},
    {{"IQ2_XXS", 256, 66}},
    {{"IQ2_XS", 256, 74}},
    {{"IQ3_XXS", 256, 98}},
    {{"IQ1_S", 256, 50}},
    {{"IQ4_NL", 32, 2 + 16}, true},
    {{"IQ3_S", 256, 110}},
    {{"IQ2_S", 256, 82}},
    {{"IQ4_XS", 256, 2 + 2 + 4 + 128}, true},
    {{"I8", 1, 1}},
    {{"I16", 1, 2}},
    {{"I32", 1, 4}},
    {{"I64", 1, 8}},
    {{"F64", 1, 8}},
    {{"IQ1_M", 256, 56}},
    {{"BF16", 1, 2}, true},
    {{"Q4_0_4_4", 0, 0}},
    {{"Q4_0_4_8", 0, 0}},
    {{"Q4_0_8_8", 0, 0}},
    {{"TQ1_0", 256, 54}},
    {{"TQ2_0", 256, 66}},
    {{"IQ4_NL_4_4", 0, 0}},
    {{"IQ4_NL_4_8", 0, 0}},
    {{"IQ4_NL_8_8", 0, 0}},
    {{"MXFP4", 32, 17}, true},
    {{"NVFP4", 64, 36}},
    {{"Q1_0", 128, 18}},
    {{"Q2_0", 64, 18}},
};

constexpr int kF16ExponentMask = 0x7c00;
constexpr int kBf16ExponentMask = 0x7f80;

// Whether no 16-bit number at one of the offsets in each block has all bits of the mask.
bool ScalesAreFinite(const std::byte* from, int64_t n_blocks, int64_t block_bytes,
                     std::initializer_list<int> offsets) {
  bool finite = true;
  for (int64_t i = 0; i < n_blocks; ++i, from += block_bytes) {
    for (const int offset : offsets) {
      const int high_byte = std::to_integer<int>(from[offset + 1]);
      finite &= (high_byte << 8 & kF16ExponentMask) != kF16ExponentMask;
    }
  }
  return finite;
}

bool HalvesAreFinite(const std::byte* from, int64_t n, uint16_t mask) {
  uint16_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    __builtin_memcpy(&bits, from + 2 * i, sizeof(bits));
    found |= (bits & mask) == mask;
  }
  return found == 0;
}

// A block of MXFP4 is a power of two, 2^(exponent - 128), and 32 codes of magnitudes up to 12.
bool MxfpBlocksAreFinite(const std::byte* from, int64_t n_blocks) {
  constexpr int kLargestSafeExponent = 252;  // 12 * 2^124 is the largest such value of F32
  constexpr int kNan = 255;
  for (int64_t i = 0; i < n_blocks; ++i, from += 17) {
    const int exponent = std::to_integer<int>(from[0]);
    if (exponent <= kLargestSafeExponent) continue;
    if (exponent == kNan) return false;
    float values[32];
    DequantizeBlocks(GgmlType::kMxfp4, from, 32, values);
    if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) return false;
  }
  return true;
}

bool FloatsAreFinite(const std::byte* from, int64_t n) {
  constexpr uint32_t kMask = 0x7f800000u;
  uint32_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, from + 4 * i, sizeof(bits));
    found |= (bits & kMask) == kMask;
  }
  return found == 0;
}

}  // namespace

const GgmlLayout& LayoutOf(GgmlType type) {
  const auto number = static_cast<uint32_t>(type);
  KVL_CHECK(GgmlTypeOf(number).has_value());
  return kKnownTypes[number].layout;
}

std::optional<GgmlType> GgmlTypeOf(uint32_t number) {
  if (number >= std::size(kKnownTypes) || !kKnownTypes[number].is_read) return std::nullopt;
  return static_cast<GgmlType>(number);
}

std::string GgmlTypeName(uint32_t number) {
  if (number >= std::size(kKnownTypes)) return fmt::format("type {}", number);
  return std::string(kKnownTypes[number].layout.name);
}

std::optional<GgmlLayout> KnownGgmlLayout(uint32_t number) {
  if (number >= std::size(kKnownTypes) || kKnownTypes[number].layout.block_values == 0) {
    return std::nullopt;
  }
  return kKnownTypes[number].layout;
}

bool AllFinite(GgmlType type, const std::byte* from, int64_t n) {
  const GgmlLayout& layout = LayoutOf(type);
  KVL_CHECK_EQ(n % layout.block_values, 0);
  const int64_t n_blocks = n / layout.block_values;
  // A block's integers times finite F16 scales stay far below the largest F32.
  const auto scales_at = [&](std::initializer_list<int> offsets) {
    return ScalesAreFinite(from, n_blocks, layout.block_bytes, offsets);
  };
  switch (type) {
    case GgmlType::kF32:
      return FloatsAreFinite(from, n);
    case GgmlType::kF16:
      return HalvesAreFinite(from, n, kF16ExponentMask);
    case GgmlType::kBf16:
      return HalvesAreFinite(from, n, kBf16ExponentMask);
    case GgmlType::kQ4_0:
    case GgmlType::kQ5_0:
    case GgmlType::kQ8_0:
    case GgmlType::kIq4Nl:
    case GgmlType::kIq4Xs:
      return scales_at({0});
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return scales_at({0, 2});
    case GgmlType::kQ2_K:
      return scales_at({80, 82});
    case GgmlType::kQ3_K:
      return scales_at({108});
    case GgmlType::kQ6_K:
      return scales_at({208});
    case GgmlType::kMxfp4:
      return MxfpBlocksAreFinite(from, n_blocks);
  }
  return false;
}

}  // namespace kvlathe
