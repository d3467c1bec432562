// The blocks of each type, in the order of float operations of the Python package `gguf`: one
// rounding for each product and each sum. This file is compiled without contraction, so that no
// product and sum become one operation with one rounding.
//
// In a block, scales (F16, or a power of two) stand beside packed integers. Where a value has more
// bits than 4 or 2, its upper bits stand in an array of their own. The loops of a fixed length are
// those that the compiler makes vector code of.
#include <bit>
#include <cstring>

#include "base/check.h"
#include "io/gguf/ggml_types.h"

namespace kvlathe {
namespace {

using Byte = uint8_t;

constexpr int kBlock = 32;        // values of a block of Q4_0 and its like
constexpr int kSuperBlock = 256;  // values of a block of Q4_K and its like

// As ToFloat(F16), with masks in place of branches: in loops it becomes vector code.
inline float HalfToFloat(uint16_t half) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  constexpr uint32_t kRebias = 112u << 23;
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t is_subnormal = 0u - ((magnitude & kExponent) == 0);
  const uint32_t is_special = 0u - ((magnitude & kExponent) == kExponent);  // infinity or NaN
  const uint32_t normal = magnitude + kRebias + (kRebias & is_special);
  const float shifted = std::bit_cast<float>(magnitude + kRebias + (1u << 23));
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted - 0x1.0p-14f);
  return std::bit_cast<float>(sign | (normal & ~is_subnormal) | (subnormal & is_subnormal));
}

inline uint16_t Load16(const Byte* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
// For the scale of a block, which is hardly ever subnormal: a branch costs less than the masks.
inline float LoadScale(const Byte* from) {
  const uint16_t half = Load16(from);
  const uint32_t exponent = half >> 10 & 31u;
  if (exponent == 0 || exponent == 31) [[unlikely]]
    return HalfToFloat(half);
  return std::bit_cast<float>((half & 0x8000u) << 16 | ((half & 0x7fffu) + (112u << 10)) << 13);
}

void DequantizeF16(const Byte* from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = HalfToFloat(Load16(from + 2 * i));
}

void DequantizeBf16(const Byte* from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(Load16(from + 2 * i)) << 16);
  }
}

void DequantizeQ4_0(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 18, to += kBlock) {
    const float d = LoadScale(from);
    const Byte* q = from + 2;
    for (int l = 0; l < 16; ++l) {
      to[l] = d * static_cast<float>((q[l] & 15) - 8);
      to[l + 16] = d * static_cast<float>((q[l] >> 4) - 8);
    }
  }
}

void DequantizeQ4_1(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 20, to += kBlock) {
    const float d = LoadScale(from);
    const float m = LoadScale(from + 2);
    const Byte* q = from + 4;
    for (int l = 0; l < 16; ++l) {
      to[l] = d * static_cast<float>(q[l] & 15) + m;
      to[l + 16] = d * static_cast<float>(q[l] >> 4) + m;
    }
  }
}

// The 5-bit integers of a block: the low four bits as in Q4_0, then bit l of `high` for value l.
inline void UnpackFiveBits(const Byte* high, const Byte* low, int* __restrict q) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  for (int l = 0; l < 16; ++l) {
    q[l] = (low[l] & 15) | static_cast<int>((bits >> l & 1) << 4);
    q[l + 16] = (low[l] >> 4) | static_cast<int>((bits >> (l + 16) & 1) << 4);
  }
}

void DequantizeQ5_0(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 22, to += kBlock) {
    const float d = LoadScale(from);
    int q[kBlock];
    UnpackFiveBits(from + 2, from + 6, q);
    for (int l = 0; l < kBlock; ++l) to[l] = d * static_cast<float>(q[l] - 16);
  }
}

void DequantizeQ5_1(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 24, to += kBlock) {
    const float d = LoadScale(from);
    const float m = LoadScale(from + 2);
    int q[kBlock];
    UnpackFiveBits(from + 4, from + 8, q);
    for (int l = 0; l < kBlock; ++l) to[l] = d * static_cast<float>(q[l]) + m;
  }
}

void DequantizeQ8_0(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 34, to += kBlock) {
    const float d = LoadScale(from);
    const Byte* q = from + 2;
    for (int l = 0; l < kBlock; ++l) to[l] = static_cast<float>(static_cast<int8_t>(q[l])) * d;
  }
}

// 16 scales of 16 values each; a scale and a minimum of four bits in each byte.
void DequantizeQ2_K(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 84, to += kSuperBlock) {
    const Byte* scales = from;
    const float d = LoadScale(from + 80);
    const float d_min = LoadScale(from + 82);
    for (int g = 0; g < 16; ++g) {  // group g: 16 values
      const float scale = d * static_cast<float>(scales[g] & 15);
      const float min = d_min * static_cast<float>(scales[g] >> 4);
      const Byte* q = from + 16 + g / 8 * 32 + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      for (int l = 0; l < 16; ++l) {
        to[g * 16 + l] = scale * static_cast<float>(q[l] >> shift & 3) - min;
      }
    }
  }
}

// 16 scales of six bits for 16 values each: the low four of scale k in byte k % 8, the high two in
// byte 8 + k % 4.
void DequantizeQ3_K(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 110, to += kSuperBlock) {
    const Byte* scales = from + 96;
    const float d = LoadScale(from + 108);
    for (int g = 0; g < 16; ++g) {
      const int low = scales[g % 8] >> (g / 8 * 4) & 15;
      const int high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const Byte* mask = from + g % 2 * 16;
      const Byte* q = from + 32 + g / 8 * 32 + g % 2 * 16;
      const int shift = g % 8 / 2 * 2;
      const int bit = g / 2;
      for (int l = 0; l < 16; ++l) {
        const int minus = 4 - (mask[l] >> bit & 1) * 4;  // a set bit takes nothing off
        to[g * 16 + l] = scale * static_cast<float>((q[l] >> shift & 3) - minus);
      }
    }
  }
}

// The eight scales and minima of Q4_K and Q5_K, of six bits each in 12 bytes.
struct ScalesAndMins {
  float scale[8];
  float min[8];
};
inline ScalesAndMins UnpackScalesAndMins(const Byte* packed, float d, float d_min) {
  ScalesAndMins unpacked;
  for (int j = 0; j < 4; ++j) {
    const int scale = packed[j], min = packed[4 + j], both = packed[8 + j];
    unpacked.scale[j] = d * static_cast<float>(scale & 63);
    unpacked.min[j] = d_min * static_cast<float>(min & 63);
    unpacked.scale[4 + j] = d * static_cast<float>((both & 15) | (scale >> 2 & 48));
    unpacked.min[4 + j] = d_min * static_cast<float>(both >> 4 | (min >> 2 & 48));
  }
  return unpacked;
}

void DequantizeQ4_K(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 144, to += kSuperBlock) {
    const auto [scale, min] = UnpackScalesAndMins(from + 4, LoadScale(from), LoadScale(from + 2));
    for (int c = 0; c < 8; ++c) {  // chunk c: 32 values
      const Byte* q = from + 16 + c / 2 * 32;
      const int shift = c % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        to[c * 32 + l] = scale[c] * static_cast<float>(q[l] >> shift & 15) - min[c];
      }
    }
  }
}

void DequantizeQ5_K(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 176, to += kSuperBlock) {
    const auto [scale, min] = UnpackScalesAndMins(from + 4, LoadScale(from), LoadScale(from + 2));
    const Byte* high = from + 16;
    for (int c = 0; c < 8; ++c) {
      const Byte* q = from + 48 + c / 2 * 32;
      const int shift = c % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        const int value = (q[l] >> shift & 15) | (high[l] >> c & 1) << 4;
        to[c * 32 + l] = scale[c] * static_cast<float>(value) - min[c];
      }
    }
  }
}

// 16 scales of eight bits for 16 values each.
void DequantizeQ6_K(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 210, to += kSuperBlock) {
    const float d = LoadScale(from + 208);
    for (int g = 0; g < 16; ++g) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(from[192 + g]));
      const Byte* low = from + g / 8 * 64 + g % 4 * 16;
      const Byte* high = from + 128 + g / 8 * 32 + g % 2 * 16;
      const int low_shift = g % 8 / 4 * 4;
      const int high_shift = g % 8 / 2 * 2;
      for (int l = 0; l < 16; ++l) {
        const int value = (low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4;
        to[g * 16 + l] = scale * static_cast<float>(value - 32);
      }
    }
  }
}

constexpr float kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

// 32 values of four bits, each the number of one of 16 values.
inline void LookUp(const Byte* q, float scale, const float (&values)[16], float* __restrict to) {
  float scaled[16];
  for (int k = 0; k < 16; ++k) scaled[k] = scale * values[k];
  for (int l = 0; l < 16; ++l) {
    to[l] = scaled[q[l] & 15];
    to[l + 16] = scaled[q[l] >> 4];
  }
}

void DequantizeIq4Nl(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 18, to += kBlock) {
    LookUp(from + 2, LoadScale(from), kNonLinear, to);
  }
}

// Eight scales of six bits for 32 values each: the low four in from[4..7], the high two in 16 bits.
void DequantizeIq4Xs(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 136, to += kSuperBlock) {
    const float d = LoadScale(from);
    const int high = Load16(from + 2);
    for (int c = 0; c < 8; ++c) {
      const int scale = (from[4 + c / 2] >> (c % 2 * 4) & 15) | (high >> 2 * c & 3) << 4;
      LookUp(from + 8 + c * 16, d * static_cast<float>(scale - 32), kNonLinear, to + c * 32);
    }
  }
}

// Twice the values of FP4 E2M1. The code of -0 is a plain zero, as it is to the package.
constexpr float kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// A block has an exponent in place of a scale: half of E8M0, 2^(exponent - 128).
void DequantizeMxfp4(const Byte* from, int64_t n_blocks, float* __restrict to) {
  for (int64_t i = 0; i < n_blocks; ++i, from += 17, to += kBlock) {
    const uint32_t exponent = from[0];
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
    LookUp(from + 1, std::bit_cast<float>(bits), kE2m1, to);
  }
}

}  // namespace

void DequantizeBlocks(GgmlType type, const std::byte* from, int64_t n, float* to) {
  const int64_t block_values = LayoutOf(type).block_values;
  KVL_CHECK_EQ(n % block_values, 0);
  const int64_t n_blocks = n / block_values;
  const Byte* bytes = reinterpret_cast<const Byte*>(from);
  switch (type) {
    case GgmlType::kF32:
      if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      return;
    case GgmlType::kF16:
      return DequantizeF16(bytes, n_blocks, to);
    case GgmlType::kBf16:
      return DequantizeBf16(bytes, n_blocks, to);
    case GgmlType::kQ4_0:
      return DequantizeQ4_0(bytes, n_blocks, to);
    case GgmlType::kQ4_1:
      return DequantizeQ4_1(bytes, n_blocks, to);
    case GgmlType::kQ5_0:
      return DequantizeQ5_0(bytes, n_blocks, to);
    case GgmlType::kQ5_1:
      return DequantizeQ5_1(bytes, n_blocks, to);
    case GgmlType::kQ8_0:
      return DequantizeQ8_0(bytes, n_blocks, to);
    case GgmlType::kQ2_K:
      return DequantizeQ2_K(bytes, n_blocks, to);
    case GgmlType::kQ3_K:
      return DequantizeQ3_K(bytes, n_blocks, to);
    case GgmlType::kQ4_K:
      return DequantizeQ4_K(bytes, n_blocks, to);
    case GgmlType::kQ5_K:
      return DequantizeQ5_K(bytes, n_blocks, to);
    case GgmlType::kQ6_K:
      return DequantizeQ6_K(bytes, n_blocks, to);
    case GgmlType::kIq4Nl:
      return DequantizeIq4Nl(bytes, n_blocks, to);
    case GgmlType::kIq4Xs:
      return DequantizeIq4Xs(bytes, n_blocks, to);
    case GgmlType::kMxfp4:
      return DequantizeMxfp4(bytes, n_blocks, to);
  }
}

}  // namespace kvlathe
