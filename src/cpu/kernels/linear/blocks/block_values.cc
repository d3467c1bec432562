// Compiled without contraction, so that values have the bits that two roundings give.
#include "cpu/kernels/linear/blocks/block_values.h"

#include <bit>
#include <cstring>

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

// n codes of four bits: the lower halves of n / 2 bytes, then the upper ones.
void TakeHalves(const Byte* q, int n, Byte* codes) {
  for (int i = 0; i < n / 2; ++i) {
    codes[i] = q[i] & 15;
    codes[i + n / 2] = q[i] >> 4;
  }
}

// Adds bit i of 32 bits to code i, as bit 4.
void AddFifthBits(const Byte* high, Byte* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  for (int i = 0; i < kBlockIns; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// The eight scales and minima of six bits of Q4_K and Q5_K.
void TakeSixBits(const Byte* packed, BlockValues* v) {
  for (int j = 0; j < 4; ++j) {
    const int scale = packed[j], min = packed[4 + j], both = packed[8 + j];
    v->unit_scales[j] = scale & 63;
    v->unit_mins[j] = min & 63;
    v->unit_scales[4 + j] = (both & 15) | (scale >> 2 & 48);
    v->unit_mins[4 + j] = both >> 4 | (min >> 2 & 48);
  }
}

void ReadQ2_K(const Byte* from, BlockValues* v) {
  v->scale = Load16(from + 80);
  v->min = Load16(from + 82);
  std::memcpy(v->unit_scales, from, kMaxUnits);
  for (int c = 0; c < 8; ++c) {  // 32 values
    const Byte* q = from + 16 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) v->codes[c * 32 + i] = q[i] >> (c % 4 * 2) & 3;
  }
}

void ReadQ3_K(const Byte* from, BlockValues* v) {
  v->scale = Load16(from + 108);
  const Byte* scales = from + 96;
  for (int g = 0; g < kMaxUnits; ++g) {
    const int low = scales[g % 8] >> (g / 8 * 4) & 15;
    const int high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    v->unit_scales[g] = static_cast<Byte>((low | high << 4) - 32);
  }
  for (int c = 0; c < 8; ++c) {
    const Byte* q = from + 32 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) {
      v->codes[c * 32 + i] = (q[i] >> (c % 4 * 2) & 3) | (from[i] >> c & 1) << 2;
    }
  }
}

void ReadQ4_K(const Byte* from, BlockValues* v) {
  v->scale = Load16(from);
  v->min = Load16(from + 2);
  TakeSixBits(from + 4, v);
  for (int c = 0; c < 4; ++c) TakeHalves(from + 16 + c * 32, 64, v->codes + c * 64);
}

void ReadQ5_K(const Byte* from, BlockValues* v) {
  v->scale = Load16(from);
  v->min = Load16(from + 2);
  TakeSixBits(from + 4, v);
  for (int c = 0; c < 4; ++c) TakeHalves(from + 48 + c * 32, 64, v->codes + c * 64);
  for (int c = 0; c < 8; ++c) {
    for (int i = 0; i < 32; ++i) v->codes[c * 32 + i] |= (from[16 + i] >> c & 1) << 4;
  }
}

void ReadQ6_K(const Byte* from, BlockValues* v) {
  v->scale = Load16(from + 208);
  std::memcpy(v->unit_scales, from + 192, kMaxUnits);
  for (int c = 0; c < 8; ++c) {
    const Byte* low = from + c / 4 * 64 + c % 2 * 32;
    const Byte* high = from + 128 + c / 4 * 32;
    for (int i = 0; i < 32; ++i) {
      v->codes[c * 32 + i] =
          (low[i] >> (c % 4 / 2 * 4) & 15) | (high[i] >> (c % 4 * 2) & 3) << 4;
    }
  }
}

void ReadIq4Xs(const Byte* from, BlockValues* v) {
  v->scale = Load16(from);
  const int high = Load16(from + 2);
  for (int c = 0; c < 8; ++c) {
    const int scale = (from[4 + c / 2] >> (c % 2 * 4) & 15) | (high >> 2 * c & 3) << 4;
    v->unit_scales[c] = static_cast<Byte>(scale - 32);
    TakeHalves(from + 8 + c * 16, 32, v->codes + c * 32);
  }
}

// The planes of codes of 32 inputs: `bits` of them, from bit `first` of a code on, of 32 * bits / 8
// bytes.
void PackPlane(const Byte* codes, int first, int bits, Byte* plane) {
  const int n_sharing = 8 / bits;  // quads
  const int n_bytes = kBlockIns / n_sharing;
  const Byte mask = static_cast<Byte>((1 << bits) - 1);
  for (int j = 0; j < n_bytes; ++j) plane[j] = codes[j] >> first & mask;
  for (int s = 1; s < n_sharing; ++s) {
    for (int j = 0; j < n_bytes; ++j) {
      plane[j] |= (codes[s * n_bytes + j] >> first & mask) << (s * bits);
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

// Calls fn(first bit, bits, byte of the plane's first line among the codes of 32 inputs).
template <typename F>
void ForPlanes(int bits, const F& fn) {
  int first = 0, offset = 0;
  for (const int of_plane : {8, 4, 2, 1}) {
    if ((bits & of_plane) == 0) continue;
    fn(first, of_plane, offset);
    first += of_plane;
    offset += kGroupOuts * kBlockIns * of_plane / 8;
  }
}

constexpr int kQuad = 4;                           // inputs
constexpr int kLineBytes = kGroupOuts * kQuad;

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

void ReadStoredBlock(WeightType type, const std::byte* stored, BlockValues* v) {
  const Byte* from = reinterpret_cast<const Byte*>(stored);
  switch (type) {
    case WeightType::kQ2_K:
      return ReadQ2_K(from, v);
    case WeightType::kQ3_K:
      return ReadQ3_K(from, v);
    case WeightType::kQ4_K:
      return ReadQ4_K(from, v);
    case WeightType::kQ5_K:
      return ReadQ5_K(from, v);
    case WeightType::kQ6_K:
      return ReadQ6_K(from, v);
    case WeightType::kIq4Xs:
      return ReadIq4Xs(from, v);
    case WeightType::kMxfp4:
      v->scale = from[0];
      return TakeHalves(from + 1, kBlockIns, v->codes);
    default:
      break;
  }
  // Blocks of 32: a scale, perhaps a minimum, perhaps the fifth bits, codes.
  const BlockLayout layout = LayoutOfBlocks(type);
  v->scale = Load16(from);
  from += 2;
  if (layout.has_min) {
    v->min = Load16(from);
    from += 2;
  }
  if (layout.bits == 8) {
    std::memcpy(v->codes, from, kBlockIns);
    return;
  }
  if (layout.bits == 4) return TakeHalves(from, kBlockIns, v->codes);
  TakeHalves(from + 4, kBlockIns, v->codes);
  AddFifthBits(from, v->codes);
}

void PutBlock(const BlockLayout& layout, const BlockValues& v, int out, std::byte* group) {
  Byte* const to = reinterpret_cast<Byte*>(group);
  const int scale_bytes = layout.block_scale_bytes();
  std::memcpy(to + out * scale_bytes, &v.scale, scale_bytes);  // little-endian
  if (layout.has_min) std::memcpy(to + layout.min_offset() + 2 * out, &v.min, sizeof(v.min));
  for (int u = 0; u < layout.units(); ++u) {
    to[layout.unit_scale_offset() + u * kGroupOuts + out] = v.unit_scales[u];
    if (layout.unit_scales != UnitScales::kBytes) continue;
    to[layout.unit_min_offset() + u * kGroupOuts + out] = v.unit_mins[u];
  }
  for (int b = 0; b < layout.block / kBlockIns; ++b) {
    Byte* const codes = to + layout.code_offset() + b * layout.code_bytes();
    ForPlanes(layout.bits, [&](int first, int bits, int offset) {
      Byte plane[kBlockIns];
      PackPlane(v.codes + b * kBlockIns, first, bits, plane);
      for (int line = 0; line < bits; ++line) {
        std::memcpy(codes + offset + line * kLineBytes + out * kQuad, plane + line * kQuad, kQuad);
      }
    });
  }
}

void TakeBlock(const BlockLayout& layout, const std::byte* group, int out, BlockValues* v) {
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
    const Byte* const codes = from + layout.code_offset() + b * layout.code_bytes();
    ForPlanes(layout.bits, [&](int first, int bits, int offset) {
      Byte plane[kBlockIns];
      for (int line = 0; line < bits; ++line) {
        std::memcpy(plane + line * kQuad, codes + offset + line * kLineBytes + out * kQuad, kQuad);
      }
      UnpackPlane(plane, first, bits, v->codes + b * kBlockIns);
    });
  }
}

UnitFactors FactorsOf(const BlockLayout& layout, const BlockValues& v, int unit) {
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
  if (layout.table == CodeTable::kNonLinear) return kNonLinearValues[code];
  if (layout.table == CodeTable::kFp4) return kFp4Values[code];
  return layout.bits == 8 ? static_cast<int8_t>(code) : code - layout.zero;
}

void BlockToFloats(const BlockLayout& layout, const BlockValues& v, float* to) {
  for (int first = 0; first < layout.block; first += layout.unit) {
    const UnitFactors factors = FactorsOf(layout, v, first / layout.unit);
    for (int i = first; i < first + layout.unit; ++i) {
      const float product = factors.scale * static_cast<float>(NumberOf(layout, v.codes[i]));
      to[i] = layout.has_min ? product - factors.min : product;
    }
  }
}

}  // namespace kvlathe
