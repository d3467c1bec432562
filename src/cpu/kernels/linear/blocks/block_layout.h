// How weights in blocks lie in memory: as many bits as in a file of theirs, in the order in which
// products read them.
//
// 16 outputs stand side by side. A group is 16 outputs x the values of one block (32 or 256), with
//   scales of blocks     [16] F16, or the exponents of MXFP4 [16] of 8 bits
//   minima of blocks     [16] F16, where the type has them
//   scales of units      [units][16] of 8 bits, where the type has them; a unit is 16 or 32 values
//   minima of units      [units][16] of 8 bits, likewise (Q2_K: in the upper half of the scales)
// and then, for every 32 inputs, planes of the bits of codes. In a plane stand lines of 64 bytes:
// byte 4 * output + i of a line is of input 4 * quad + i, and which quads of the 8 share a byte is:
//   4 bits: line l has quad l in its lower and quad l + 4 in its upper half
//   2 bits: line l has quad l + 2 s in bits [2 s, 2 s + 2)
//   1 bit:  bit q is of quad q
//   8 bits: line q is quad q
// A code of 5 bits is a plane of 4 and one of 1, 6 bits are 4 and 2, 3 bits are 2 and 1. Groups of
// the same 16 outputs follow each other.
//
// A value is scale * (code - zero) - min, or scale * table[code].
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/weight_type.h"

namespace kvlathe {

inline constexpr int kGroupOuts = 16;
inline constexpr int kBlockIns = 32;    // inputs whose codes lie together
inline constexpr int kLongBlock = 256;  // values of the longer blocks
inline constexpr int kMinUnit = 16;     // the shortest unit
inline constexpr int kMaxUnits = kLongBlock / kMinUnit;

// What the scales of units are.
enum class UnitScales : uint8_t {
  kNone,     // a unit is a block
  kNibbles,  // unsigned; the minimum in the upper half
  kBytes,    // unsigned, and the minima beside them
  kSigned,   // no minima
};

// What codes stand for.
enum class NumberTable : uint8_t { kNone, kNonLinear, kFp4 };

struct BlockLayout {
  int bits;   // of a code
  int block;  // values that share a scale of 16 bits: 32 or 256
  int unit;   // values that share all scales: 16 or 32
  UnitScales unit_scales;
  bool has_min;  // of blocks; with units also of those
  int zero;      // taken off every code
  NumberTable table;
  bool has_exponents;  // of 8 bits in place of scales

  constexpr int units() const { return unit_scales == UnitScales::kNone ? 0 : block / unit; }
  constexpr int block_scale_bytes() const { return has_exponents ? 1 : 2; }
  constexpr int min_offset() const { return kGroupOuts * block_scale_bytes(); }
  constexpr int unit_scale_offset() const { return min_offset() + (has_min ? 2 * kGroupOuts : 0); }
  constexpr int unit_min_offset() const { return unit_scale_offset() + units() * kGroupOuts; }
  constexpr int code_offset() const {
    return unit_min_offset() + (unit_scales == UnitScales::kBytes ? units() * kGroupOuts : 0);
  }
  // Of 32 inputs of 16 outputs.
  constexpr int code_bytes() const { return kGroupOuts * kBlockIns * bits / 8; }
  constexpr int group_bytes() const { return code_offset() + block / kBlockIns * code_bytes(); }
};

constexpr BlockLayout LayoutOfBlocks(WeightType type) {
  using enum WeightType;
  constexpr auto kShort = [](int bits, bool has_min, int zero,
                             NumberTable table = NumberTable::kNone, bool has_exponents = false) {
    return BlockLayout{bits, 32, 32, UnitScales::kNone, has_min, zero, table, has_exponents};
  };
  constexpr auto kLong = [](int bits, int unit, UnitScales scales, int zero,
                            NumberTable table = NumberTable::kNone) {
    const bool has_min = scales == UnitScales::kNibbles || scales == UnitScales::kBytes;
    return BlockLayout{bits, kLongBlock, unit, scales, has_min, zero, table, false};
  };
  switch (type) {
    case kQ4_0:
      return kShort(4, false, 8);
    case kQ4_1:
      return kShort(4, true, 0);
    case kQ5_0:
      return kShort(5, false, 16);
    case kQ5_1:
      return kShort(5, true, 0);
    case kQ2_K:
      return kLong(2, 16, UnitScales::kNibbles, 0);
    case kQ3_K:
      return kLong(3, 16, UnitScales::kSigned, 4);
    case kQ4_K:
      return kLong(4, 32, UnitScales::kBytes, 0);
    case kQ5_K:
      return kLong(5, 32, UnitScales::kBytes, 0);
    case kQ6_K:
      return kLong(6, 16, UnitScales::kSigned, 32);
    case kIq4Nl:
      return kShort(4, false, 0, NumberTable::kNonLinear);
    case kIq4Xs:
      return kLong(4, 32, UnitScales::kSigned, 0, NumberTable::kNonLinear);
    case kMxfp4:
      return kShort(4, false, 0, NumberTable::kFp4, true);
    default:
      return kShort(8, false, 0);
  }
}

// What 4-bit codes stand for: IQ4_NL and IQ4_XS, and the halves of MXFP4.
inline constexpr int8_t kNonLinearValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace kvlathe
