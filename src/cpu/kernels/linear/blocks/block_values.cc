// Compiled without contraction, so that values have the bits that two roundings give.
#include "cpu/kernels/linear/blocks/block_values.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using Byte = uint8_t;

uint16_t Load16(const Byte* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

float FromF16(uint16_t bits) { return ToFloat(F16{bits}); }

// Half of 2^(exponent - 127), as MXFP4's numbers are doubled.
float FromExponent(uint16_t exponent) {
  return exponent < 2 ? std::bit_cast<float>(0x00200000u << exponent)
                      : std::bit_cast<float>((exponent - 1u) << 23);
}

// kCodes codes of four bits: the lower halves of as many bytes, then the upper ones.
template <int kCodes>
void TakeHalves(const Byte* q, Byte* __restrict codes) {
  for (int i = 0; i < kCodes / 2; ++i) {
    codes[i] = q[i] & 15;
    codes[i + kCodes / 2] = q[i] >> 4;
  }
}

// Adds bit i of 32 bits to code i, as bit 4.
void AddFifthBits(const Byte* high, Byte* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  for (int i = 0; i < kBlockIns; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// The eight scales and minima of six bits of Q4_K and Q5_K.
void TakeSixBits(const Byte* packed, CodedBlock* v) {
  for (int j = 0; j < 4; ++j) {
    const int scale = packed[j], min = packed[4 + j], both = packed[8 + j];
    v->unit_scales[j] = scale & 63;
    v->unit_mins[j] = min & 63;
    v->unit_scales[4 + j] = (both & 15) | (scale >> 2 & 48);
    v->unit_mins[4 + j] = both >> 4 | (min >> 2 & 48);
  }
}

void ReadQ2_K(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from + 80);
  v->min = Load16(from + 82);
  std::memcpy(v->unit_scales, from, kMaxUnits);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {  // 32 values
    const Byte* q = from + 16 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) v->codes[c * 32 + i] = q[i] >> (c % 4 * 2) & 3;
  }
}

void ReadQ3_K(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from + 108);
  const Byte* scales = from + 96;
  for (int g = 0; g < kMaxUnits; ++g) {
    const int low = scales[g % 8] >> (g / 8 * 4) & 15;
    const int high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    v->unit_scales[g] = static_cast<Byte>((low | high << 4) - 32);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    const Byte* q = from + 32 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) {
      v->codes[c * 32 + i] = (q[i] >> (c % 4 * 2) & 3) | (from[i] >> c & 1) << 2;
    }
  }
}

void ReadQ4_K(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from);
  v->min = Load16(from + 2);
  TakeSixBits(from + 4, v);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) TakeHalves<64>(from + 16 + c * 32, v->codes + c * 64);
}

void ReadQ5_K(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from);
  v->min = Load16(from + 2);
  TakeSixBits(from + 4, v);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) TakeHalves<64>(from + 48 + c * 32, v->codes + c * 64);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    for (int i = 0; i < 32; ++i) v->codes[c * 32 + i] |= (from[16 + i] >> c & 1) << 4;
  }
}

void ReadQ6_K(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from + 208);
  std::memcpy(v->unit_scales, from + 192, kMaxUnits);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    const Byte* low = from + c / 4 * 64 + c % 2 * 32;
    const Byte* high = from + 128 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) {
      v->codes[c * 32 + i] = (low[i] >> (c % 4 / 2 * 4) & 15) | (high[i] >> (c % 4 * 2) & 3) << 4;
    }
  }
}

void ReadIq4Xs(const Byte* from, CodedBlock* v) {
  v->scale = Load16(from);
  const int high = Load16(from + 2);
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    const int scale = (from[4 + c / 2] >> (c % 2 * 4) & 15) | (high >> 2 * c & 3) << 4;
    v->unit_scales[c] = static_cast<Byte>(scale - 32);
    TakeHalves<32>(from + 8 + c * 16, v->codes + c * 32);
  }
}

// A plane of codes of 32 inputs: kBits bits from bit kFirst of a code on, 4 * kBits bytes.
template <int kFirst, int kBits>
void PackPlane(const Byte* codes, Byte* __restrict plane) {
  constexpr int kSharing = 8 / kBits;  // quads
  constexpr int kBytes = kBlockIns / kSharing;
  constexpr Byte kMask = (1 << kBits) - 1;
  for (int j = 0; j < kBytes; ++j) plane[j] = codes[j] >> kFirst & kMask;
#pragma GCC unroll 8
  for (int s = 1; s < kSharing; ++s) {
    for (int j = 0; j < kBytes; ++j) {
      plane[j] |= (codes[s * kBytes + j] >> kFirst & kMask) << (s * kBits);
    }
  }
}

void UnpackPlane(const Byte* plane, int first, int bits, Byte* codes) {
  const int n_sharing = 8 / bits;
  const int n_bytes = kBlockIns / n_sharing;
  const Byte mask = static_cast<Byte>((1 << bits) - 1);
  for (int s = 0; s < n_sharing; ++s) {
    for (int j = 0; j < n_bytes; ++j) {
      codes[s * n_bytes + j] |= (plane[j] >> (s * bits) & mask) << first;
    }
  }
}

// Calls fn(bits of the plane, its first bit of a code) as constants, plane by plane.
template <int kBits, int kFirst = 0, typename F>
void ForPlanes(const F& fn) {
  constexpr int kOfPlane = kBits >= 8 ? 8 : kBits >= 4 ? 4 : kBits >= 2 ? 2 : 1;
  fn(std::integral_constant<int, kOfPlane>(), std::integral_constant<int, kFirst>());
  if constexpr (kBits > kOfPlane) ForPlanes<kBits - kOfPlane, kFirst + kOfPlane>(fn);
}
template <typename F>
void ForPlanesOf(int bits, const F& fn) {
  switch (bits) {
    case 2:
      return ForPlanes<2>(fn);
    case 3:
      return ForPlanes<3>(fn);
    case 4:
      return ForPlanes<4>(fn);
    case 5:
      return ForPlanes<5>(fn);
    case 6:
      return ForPlanes<6>(fn);
    default:
      return ForPlanes<8>(fn);
  }
}

constexpr int kQuad = 4;  // inputs
constexpr int kLineBytes = kGroupOuts * kQuad;

template <WeightType kType>
void ReadStoredBlock(const Byte* from, CodedBlock* v) {
  using enum WeightType;
  if constexpr (kType == kQ2_K) return ReadQ2_K(from, v);
  if constexpr (kType == kQ3_K) return ReadQ3_K(from, v);
  if constexpr (kType == kQ4_K) return ReadQ4_K(from, v);
  if constexpr (kType == kQ5_K) return ReadQ5_K(from, v);
  if constexpr (kType == kQ6_K) return ReadQ6_K(from, v);
  if constexpr (kType == kIq4Xs) return ReadIq4Xs(from, v);
  if constexpr (kType == kMxfp4) {
    v->scale = from[0];
    return TakeHalves<kBlockIns>(from + 1, v->codes);
  }
  // Blocks of 32: a scale, perhaps a minimum, perhaps the fifth bits, codes.
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  v->scale = Load16(from);
  from += 2;
  if (kLayout.has_min) {
    v->min = Load16(from);
    from += 2;
  }
  if (kLayout.bits == 8) {
    std::memcpy(v->codes, from, kBlockIns);
    return;
  }
  if (kLayout.bits == 4) return TakeHalves<kBlockIns>(from, v->codes);
  TakeHalves<kBlockIns>(from + 4, v->codes);
  AddFifthBits(from, v->codes);
}

// A block of output `out` of a group, 0 to 15, to its place there.
template <WeightType kType>
void PutBlock(const CodedBlock& v, int out, Byte* to) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kScaleBytes = kLayout.block_scale_bytes();
  std::memcpy(to + out * kScaleBytes, &v.scale, kScaleBytes);  // little-endian
  if (kLayout.has_min) std::memcpy(to + kLayout.min_offset() + 2 * out, &v.min, sizeof(v.min));
  for (int u = 0; u < kLayout.units(); ++u) {
    to[kLayout.unit_scale_offset() + u * kGroupOuts + out] = v.unit_scales[u];
    if (kLayout.unit_scales != UnitScales::kBytes) continue;
    to[kLayout.unit_min_offset() + u * kGroupOuts + out] = v.unit_mins[u];
  }
  for (int b = 0; b < kLayout.block / kBlockIns; ++b) {
    Byte* line = to + kLayout.code_offset() + b * kLayout.code_bytes() + out * kQuad;
    ForPlanes<kLayout.bits>([&](auto bits, auto first) {
      Byte plane[kBlockIns];
      PackPlane<first.value, bits.value>(v.codes + b * kBlockIns, plane);
      for (int l = 0; l < bits.value; ++l, line += kLineBytes) {
        std::memcpy(line, plane + l * kQuad, kQuad);
      }
    });
  }
}

template <WeightType kType>
void PackRow(const Byte* stored, int64_t n_blocks, int out, Byte* group) {
  constexpr int kGroupBytes = LayoutOfBlocks(kType).group_bytes();
  const int64_t stored_bytes = StoredBlockBytes(kType);
  CodedBlock values = {};
  for (int64_t b = 0; b < n_blocks; ++b, stored += stored_bytes, group += kGroupBytes) {
    ReadStoredBlock<kType>(stored, &values);
    PutBlock<kType>(values, out, group);
  }
}

}  // namespace

int64_t StoredBlockBytes(WeightType type) {
  const BlockLayout layout = LayoutOfBlocks(type);
  const int code_bytes = layout.block * layout.bits / 8;
  switch (layout.unit_scales) {
    case UnitScales::kNone:
      return code_bytes + layout.block_scale_bytes() + (layout.has_min ? 2 : 0);
    case UnitScales::kNibbles:
      return code_bytes + 4 + kMaxUnits;
    case UnitScales::kBytes:
      return code_bytes + 4 + 12;
    case UnitScales::kSigned:
      break;
  }
  const int scale_bytes = type == WeightType::kQ6_K ? 16 : type == WeightType::kQ3_K ? 12 : 6;
  return code_bytes + 2 + scale_bytes;
}

void PackStoredRow(WeightType type, const std::byte* stored, int64_t n_blocks, int out,
                   std::byte* group) {
  const Byte* const from = reinterpret_cast<const Byte*>(stored);
  Byte* const to = reinterpret_cast<Byte*>(group);
  switch (type) {
    using enum WeightType;
    case kQ4_0:
      return PackRow<kQ4_0>(from, n_blocks, out, to);
    case kQ4_1:
      return PackRow<kQ4_1>(from, n_blocks, out, to);
    case kQ5_0:
      return PackRow<kQ5_0>(from, n_blocks, out, to);
    case kQ5_1:
      return PackRow<kQ5_1>(from, n_blocks, out, to);
    case kQ8_0:
      return PackRow<kQ8_0>(from, n_blocks, out, to);
    case kQ2_K:
      return PackRow<kQ2_K>(from, n_blocks, out, to);
    case kQ3_K:
      return PackRow<kQ3_K>(from, n_blocks, out, to);
    case kQ4_K:
      return PackRow<kQ4_K>(from, n_blocks, out, to);
    case kQ5_K:
      return PackRow<kQ5_K>(from, n_blocks, out, to);
    case kQ6_K:
      return PackRow<kQ6_K>(from, n_blocks, out, to);
    case kIq4Nl:
      return PackRow<kIq4Nl>(from, n_blocks, out, to);
    case kIq4Xs:
      return PackRow<kIq4Xs>(from, n_blocks, out, to);
    case kMxfp4:
      return PackRow<kMxfp4>(from, n_blocks, out, to);
    case kBf16:
    case kF32:
      return;  // no blocks
  }
}

void TakeBlock(const BlockLayout& layout, const std::byte* group, int out, CodedBlock* v) {
  const Byte* const from = reinterpret_cast<const Byte*>(group);
  const int scale_bytes = layout.block_scale_bytes();
  v->scale = 0;
  std::memcpy(&v->scale, from + out * scale_bytes, scale_bytes);
  if (layout.has_min) std::memcpy(&v->min, from + layout.min_offset() + 2 * out, sizeof(v->min));
  for (int u = 0; u < layout.units(); ++u) {
    v->unit_scales[u] = from[layout.unit_scale_offset() + u * kGroupOuts + out];
    if (layout.unit_scales != UnitScales::kBytes) continue;
    v->unit_mins[u] = from[layout.unit_min_offset() + u * kGroupOuts + out];
  }
  std::memset(v->codes, 0, sizeof(v->codes));
  for (int b = 0; b < layout.block / kBlockIns; ++b) {
    const Byte* line = from + layout.code_offset() + b * layout.code_bytes() + out * kQuad;
    ForPlanesOf(layout.bits, [&](auto bits, auto first) {
      Byte plane[kBlockIns];
      for (int l = 0; l < bits.value; ++l, line += kLineBytes) {
        std::memcpy(plane + l * kQuad, line, kQuad);
      }
      UnpackPlane(plane, first.value, bits.value, v->codes + b * kBlockIns);
    });
  }
}

UnitFactors FactorsOf(const BlockLayout& layout, const CodedBlock& v, int unit) {
  const float scale = layout.has_exponents ? FromExponent(v.scale) : FromF16(v.scale);
  const float min = layout.has_min ? FromF16(v.min) : 0.0f;
  switch (layout.unit_scales) {
    case UnitScales::kNone:
      return {scale, -min};  // a short block's minimum is added
    case UnitScales::kNibbles:
      return {scale * static_cast<float>(v.unit_scales[unit] & 15),
              min * static_cast<float>(v.unit_scales[unit] >> 4)};
    case UnitScales::kBytes:
      return {scale * static_cast<float>(v.unit_scales[unit]),
              min * static_cast<float>(v.unit_mins[unit])};
    case UnitScales::kSigned:
      break;
  }
  return {scale * static_cast<float>(static_cast<int8_t>(v.unit_scales[unit])), 0.0f};
}

int NumberOf(const BlockLayout& layout, uint8_t code) {
  if (layout.table == NumberTable::kNonLinear) return kNonLinearValues[code];
  if (layout.table == NumberTable::kFp4) return kFp4Values[code];
  return layout.bits == 8 ? static_cast<int8_t>(code) : code - layout.zero;
}

void BlockToFloats(const BlockLayout& layout, const CodedBlock& v, float* to) {
  for (int first = 0; first < layout.block; first += layout.unit) {
    const UnitFactors factors = FactorsOf(layout, v, first / layout.unit);
    for (int i = first; i < first + layout.unit; ++i) {
      const float product = factors.scale * static_cast<float>(NumberOf(layout, v.codes[i]));
      to[i] = layout.has_min ? product - factors.min : product;
    }
  }
}

}  // namespace kvlathe
