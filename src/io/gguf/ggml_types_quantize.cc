// Each type's blocks: which search gives its numbers, and where in the block they stand. The
// layouts are those that ggml_types_dequantize.cc reads.
#include "io/gguf/ggml_types_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "io/gguf/ggml_block_values.h"
#include "io/gguf/ggml_fits.h"
#include "io/gguf/ggml_super_blocks.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using ggml_fits::BlockValues;
using ggml_fits::GridSuperBlock;
using ggml_fits::Half;
using ggml_fits::IntegerGrid;
using ggml_fits::Line;
using ggml_fits::LineSuperBlock;
using ggml_fits::TableGrid;
using Byte = uint8_t;

constexpr int kBlock = 32;
constexpr int kSuperBlock = ggml_fits::kSuperBlock;

struct NonLinear {
  static constexpr float kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
  static constexpr int kRange = 256;
  static constexpr float kLargest = -127;
  static constexpr int kCandidates = 16;
  static constexpr float kStep = 0.01f;
};
struct E2m1 {  // twice the values of FP4 E2M1
  static constexpr float kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  static constexpr int kRange = 32;
  static constexpr float kLargest = 12;
  static constexpr int kCandidates = 4;
  static constexpr float kStep = 0.25f;
};

void Store16(uint16_t value, Byte* to) { std::memcpy(to, &value, sizeof(value)); }

void QuantizeF16(const float* from, int64_t n, Byte* to) {
  constexpr float kLargest = 65504;
  for (int64_t i = 0; i < n; ++i) {
    Store16(ToF16(std::clamp(from[i], -kLargest, kLargest)).bits, to + 2 * i);
  }
}

void QuantizeBf16(const float* from, int64_t n, Byte* to) {
  constexpr float kLargest = 0x1.fep127f;
  for (int64_t i = 0; i < n; ++i) {
    Store16(ToBf16(std::clamp(from[i], -kLargest, kLargest)).bits, to + 2 * i);
  }
}

// The low four bits of 32 codes: those of the upper half of the block in the upper halves of bytes.
void PackFourBits(const Byte* codes, Byte* to) {
  for (int l = 0; l < 16; ++l) {
    to[l] = static_cast<Byte>((codes[l] & 15) | (codes[l + 16] & 15) << 4);
  }
}
// Bit 4 of 32 codes.
void PackFifthBits(const Byte* codes, Byte* to) {
  uint32_t bits = 0;
  for (int l = 0; l < kBlock; ++l) bits |= static_cast<uint32_t>(codes[l] >> 4 & 1) << l;
  std::memcpy(to, &bits, sizeof(bits));
}

void QuantizeQ8_0(const float* from, Byte* to) {
  const BlockValues<kBlock> block(from);
  const Half scale = block.ToHalf(block.largest / 127);
  Byte codes[kBlock];
  ggml_fits::EncodeOnGrid<IntegerGrid<-127, 127>>(block.value, block.weight, kBlock, scale.value,
                                                  codes);
  Store16(scale.bits, to);
  for (int l = 0; l < kBlock; ++l) to[2 + l] = static_cast<Byte>(codes[l] - 127);
}

// Q4_0, Q5_0 and IQ4_NL: the scale of a block of 32 and its codes.
template <typename Grid>
Half FitGridBlock(const float* from, Byte* codes) {
  const BlockValues<kBlock> block(from);
  Half scale;
  if (!block.is_below_halves()) {
    scale = block.ToHalf(ggml_fits::FitScale<Grid, kBlock>(block.value, block.weight));
  }
  ggml_fits::EncodeOnGrid<Grid>(block.value, block.weight, kBlock, scale.value, codes);
  return scale;
}

void QuantizeQ4_0(const float* from, Byte* to) {
  Byte codes[kBlock];
  Store16(FitGridBlock<IntegerGrid<-8, 7>>(from, codes).bits, to);
  PackFourBits(codes, to + 2);
}

void QuantizeQ5_0(const float* from, Byte* to) {
  Byte codes[kBlock];
  Store16(FitGridBlock<IntegerGrid<-16, 15>>(from, codes).bits, to);
  PackFifthBits(codes, to + 2);
  PackFourBits(codes, to + 6);
}

void QuantizeIq4Nl(const float* from, Byte* to) {
  Byte codes[kBlock];
  Store16(FitGridBlock<TableGrid<NonLinear>>(from, codes).bits, to);
  PackFourBits(codes, to + 2);
}

// Q4_1 and Q5_1: scale and minimum of a block of 32, stored at `to`, and its codes.
template <int kMaxCode>
void FitLineBlock(const float* from, Byte* codes, Byte* to) {
  const BlockValues<kBlock> block(from);
  Half scale, min;
  if (!block.is_below_halves()) {
    const Line line = ggml_fits::FitLine<kBlock, kMaxCode, false>(block.value, block.weight);
    scale = block.ToHalf(line.scale);
    min = block.ToHalf(line.min);
  }
  ggml_fits::EncodeOnLine<kMaxCode>(block.value, block.weight, kBlock, {scale.value, min.value},
                                    codes);
  Store16(scale.bits, to);
  Store16(min.bits, to + 2);
}

void QuantizeQ4_1(const float* from, Byte* to) {
  Byte codes[kBlock];
  FitLineBlock<15>(from, codes, to);
  PackFourBits(codes, to + 4);
}

void QuantizeQ5_1(const float* from, Byte* to) {
  Byte codes[kBlock];
  FitLineBlock<31>(from, codes, to);
  PackFifthBits(codes, to + 4);
  PackFourBits(codes, to + 8);
}

// The power of two around the largest value that leaves least, and codes of four bits.
void QuantizeMxfp4(const float* from, Byte* to) {
  using Grid = TableGrid<E2m1>;
  constexpr int kMaxExponent = 252;  // 12 * 2^(253 - 128) would be infinite
  const BlockValues<kBlock> block(from);
  Byte codes[kBlock] = {};
  int exponent = 0;
  if (block.largest > 0) {
    const int unit_exponent = std::ilogb(block.unit);
    // With 2 less than the largest value's exponent, that value is between 4 and 8 times the power.
    const int middle = unit_exponent + std::ilogb(block.largest) - 2 + 127;
    float best_error = INFINITY;
    for (int tried = middle - 1; tried <= middle + 1; ++tried) {
      const int stored = std::clamp(tried, 0, kMaxExponent);
      const float scale = std::ldexp(1.0f, stored - 128 - unit_exponent);
      Byte tried_codes[kBlock];
      const float error =
          ggml_fits::EncodeOnGrid<Grid>(block.value, block.weight, kBlock, scale, tried_codes);
      if (!(error < best_error)) continue;
      best_error = error;
      exponent = stored;
      std::copy_n(tried_codes, kBlock, codes);
    }
  }
  to[0] = static_cast<Byte>(exponent);
  PackFourBits(codes, to + 1);
}

void QuantizeQ2_K(const float* from, Byte* to) {
  const LineSuperBlock<16, 3, 15> block(from);
  const auto& stored = block.stored();
  for (int g = 0; g < 16; ++g) {
    to[g] = static_cast<Byte>(stored.scales[g] | stored.mins[g] << 4);
  }
  for (int l = 0; l < 64; ++l) {  // four codes that are 32 values apart
    const Byte* codes = stored.codes + l / 32 * 128 + l % 32;
    to[16 + l] = static_cast<Byte>(codes[0] | codes[32] << 2 | codes[64] << 4 | codes[96] << 6);
  }
  Store16(stored.scale.bits, to + 80);
  Store16(stored.min.bits, to + 82);
}

void QuantizeQ3_K(const float* from, Byte* to) {
  const GridSuperBlock<IntegerGrid<-4, 3>, 16, -32, 31> block(from);
  const auto& stored = block.stored();
  std::memset(to, 0, 110);
  for (int i = 0; i < kSuperBlock; ++i) {  // the upper bits, then the lower two
    to[i % 32] |= static_cast<Byte>((stored.codes[i] >> 2) << i / 32);
    to[32 + i / 128 * 32 + i % 32] |= static_cast<Byte>((stored.codes[i] & 3) << i % 128 / 32 * 2);
  }
  Byte* scales = to + 96;
  for (int g = 0; g < 16; ++g) {
    const int scale = stored.scales[g] + 32;
    scales[g % 8] |= static_cast<Byte>((scale & 15) << g / 8 * 4);
    scales[8 + g % 4] |= static_cast<Byte>((scale >> 4) << g / 4 * 2);
  }
  Store16(stored.scale.bits, to + 108);
}

// The 12 bytes of eight scales and minima of six bits.
void PackScalesAndMins(const Byte* scales, const Byte* mins, Byte* to) {
  for (int j = 0; j < 4; ++j) {
    to[j] = static_cast<Byte>(scales[j] | (scales[4 + j] >> 4) << 6);
    to[4 + j] = static_cast<Byte>(mins[j] | (mins[4 + j] >> 4) << 6);
    to[8 + j] = static_cast<Byte>((scales[4 + j] & 15) | (mins[4 + j] & 15) << 4);
  }
}

// The low four bits of 256 codes: 32 codes and the 32 that follow share bytes.
void PackSuperFourBits(const Byte* codes, Byte* to) {
  for (int l = 0; l < 128; ++l) {
    const Byte* low = codes + l / 32 * 64 + l % 32;
    to[l] = static_cast<Byte>((low[0] & 15) | (low[32] & 15) << 4);
  }
}

void QuantizeQ4_K(const float* from, Byte* to) {
  const LineSuperBlock<8, 15, 63> block(from);
  const auto& stored = block.stored();
  Store16(stored.scale.bits, to);
  Store16(stored.min.bits, to + 2);
  PackScalesAndMins(stored.scales, stored.mins, to + 4);
  PackSuperFourBits(stored.codes, to + 16);
}

void QuantizeQ5_K(const float* from, Byte* to) {
  const LineSuperBlock<8, 31, 63> block(from);
  const auto& stored = block.stored();
  Store16(stored.scale.bits, to);
  Store16(stored.min.bits, to + 2);
  PackScalesAndMins(stored.scales, stored.mins, to + 4);
  std::memset(to + 16, 0, 32);
  for (int i = 0; i < kSuperBlock; ++i) {
    to[16 + i % 32] |= static_cast<Byte>((stored.codes[i] >> 4) << i / 32);
  }
  PackSuperFourBits(stored.codes, to + 48);
}

void QuantizeQ6_K(const float* from, Byte* to) {
  const GridSuperBlock<IntegerGrid<-32, 31>, 16, -128, 127> block(from);
  const auto& stored = block.stored();
  std::memset(to, 0, 192);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int code = stored.codes[i], in_half = i % 128;
    to[i / 128 * 64 + in_half % 64] |= static_cast<Byte>((code & 15) << in_half / 64 * 4);
    to[128 + i / 128 * 32 + i % 32] |= static_cast<Byte>((code >> 4) << in_half / 32 * 2);
  }
  std::memcpy(to + 192, stored.scales, 16);
  Store16(stored.scale.bits, to + 208);
}

void QuantizeIq4Xs(const float* from, Byte* to) {
  const GridSuperBlock<TableGrid<NonLinear>, 8, -32, 31> block(from);
  const auto& stored = block.stored();
  std::memset(to, 0, 8);
  Store16(stored.scale.bits, to);
  uint16_t high = 0;
  for (int c = 0; c < 8; ++c) {
    const int scale = stored.scales[c] + 32;
    to[4 + c / 2] |= static_cast<Byte>((scale & 15) << c % 2 * 4);
    high |= static_cast<uint16_t>((scale >> 4) << 2 * c);
    PackFourBits(stored.codes + c * 32, to + 8 + c * 16);
  }
  Store16(high, to + 2);
}

using QuantizeBlock = void (*)(const float* from, Byte* to);

QuantizeBlock QuantizerOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
      return QuantizeQ4_0;
    case GgmlType::kQ4_1:
      return QuantizeQ4_1;
    case GgmlType::kQ5_0:
      return QuantizeQ5_0;
    case GgmlType::kQ5_1:
      return QuantizeQ5_1;
    case GgmlType::kQ8_0:
      return QuantizeQ8_0;
    case GgmlType::kQ2_K:
      return QuantizeQ2_K;
    case GgmlType::kQ3_K:
      return QuantizeQ3_K;
    case GgmlType::kQ4_K:
      return QuantizeQ4_K;
    case GgmlType::kQ5_K:
      return QuantizeQ5_K;
    case GgmlType::kQ6_K:
      return QuantizeQ6_K;
    case GgmlType::kIq4Nl:
      return QuantizeIq4Nl;
    case GgmlType::kIq4Xs:
      return QuantizeIq4Xs;
    case GgmlType::kMxfp4:
      return QuantizeMxfp4;
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBf16:
      break;
  }
  return nullptr;
}

}  // namespace

void QuantizeBlocks(GgmlType type, const float* from, int64_t n, std::byte* to) {
  const GgmlLayout& layout = LayoutOf(type);
  KVL_CHECK_EQ(n % layout.block_values, 0);
  Byte* bytes = reinterpret_cast<Byte*>(to);
  switch (type) {
    case GgmlType::kF32:
      if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      return;
    case GgmlType::kF16:
      return QuantizeF16(from, n, bytes);
    case GgmlType::kBf16:
      return QuantizeBf16(from, n, bytes);
    default:
      break;
  }
  const QuantizeBlock quantize = QuantizerOf(type);
  for (int64_t i = 0; i < n; i += layout.block_values, bytes += layout.block_bytes) {
    quantize(from + i, bytes);
  }
}

}  // namespace kvlathe
