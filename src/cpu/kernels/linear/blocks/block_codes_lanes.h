// Weights in blocks from their planes to bytes, and their scales, in vectors as wide as the flags
// of the file allow.
#pragma once

#include <type_traits>

#include "cpu/kernels/lanes.h"
#include "cpu/kernels/linear/blocks/block_layout.h"

namespace kvlathe {
namespace {

constexpr int kHalves = kGroupOuts / kLanes;  // vectors of 16 outputs
constexpr int kQuads = kBlockIns / 4;
constexpr int kLine = kGroupOuts * 4;  // bytes of a quad
constexpr int kVecBytes = kLanes * 4;

#ifdef __AVX512F__
KVL_LANES IntVec Or(IntVec a, IntVec b) { return _mm512_or_si512(a, b); }
template <int kBits>
KVL_LANES IntVec ShiftRightBy(IntVec x) {
  return _mm512_srli_epi16(x, kBits);
}
template <int kBits>
KVL_LANES IntVec ShiftLeftBy(IntVec x) {
  return _mm512_slli_epi16(x, kBits);
}
KVL_LANES IntVec SetBytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
KVL_LANES void StoreBytes(void* p, IntVec x) { _mm512_store_si512(p, x); }
KVL_LANES Vec FromExponents(IntVec e) {
  const IntVec normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const IntVec subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, subnormal));
}
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec codes, IntVec row) {
  return _mm512_dpbusd_epi32(sums, codes, row);
}
KVL_LANES IntVec AddInts(IntVec sums, IntVec ints) { return _mm512_add_epi32(sums, ints); }
KVL_LANES IntVec MultiplyInts(IntVec a, IntVec b) { return _mm512_mullo_epi32(a, b); }
#else
#ifdef __AVXVNNI__
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec codes, IntVec row) {
  return _mm256_dpbusd_avx_epi32(sums, codes, row);
}
KVL_LANES IntVec MultiplyInts(IntVec a, IntVec b) { return _mm256_mullo_epi32(a, b); }
#endif
// Added in the order in which they are written: g++ would add integers up in trees, which take more
// registers than there are.
KVL_LANES IntVec AddWords(IntVec sums, IntVec words) {
  asm("vpaddw %1, %0, %0" : "+x"(sums) : "x"(words));
  return sums;
}
KVL_LANES IntVec AddInts(IntVec sums, IntVec ints) {
  asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(ints));
  return sums;
}
KVL_LANES IntVec Or(IntVec a, IntVec b) { return _mm256_or_si256(a, b); }
template <int kBits>
KVL_LANES IntVec ShiftRightBy(IntVec x) {
  return _mm256_srli_epi16(x, kBits);
}
template <int kBits>
KVL_LANES IntVec ShiftLeftBy(IntVec x) {
  return _mm256_slli_epi16(x, kBits);
}
KVL_LANES IntVec SetBytes(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
KVL_LANES void StoreBytes(void* p, IntVec x) { _mm256_store_si256(static_cast<__m256i*>(p), x); }
KVL_LANES Vec FromExponents(IntVec e) {
  const IntVec normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const IntVec subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const IntVec is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_small));
}
#endif

// Left for positive kBits, right for negative.
template <int kBits>
KVL_LANES IntVec ShiftBy(IntVec x) {
  if constexpr (kBits > 0) return ShiftLeftBy<kBits>(x);
  if constexpr (kBits < 0) return ShiftRightBy<-kBits>(x);
  return x;
}

// --- From the planes of a group to bytes. ---

// Whether codes stand for numbers of 8 bits with a sign. Their bytes are these numbers, with VNNI
// raised by 128; other bytes are codes, or numbers raised to be none below zero.
template <WeightType kType>
constexpr bool HasSignedNumbers() {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  return kLayout.bits == 8 || kLayout.table == NumberTable::kNonLinear;
}
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kHasDots = true;
#else
constexpr bool kHasDots = false;
#endif
// Taken off every byte.
template <WeightType kType>
constexpr int ZeroOf() {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  if (kLayout.table == NumberTable::kFp4) return 12;
  if (HasSignedNumbers<kType>()) return kHasDots ? 128 : 0;
  return kLayout.zero;
}

// Quad kQuad of 32 inputs, of one vector of outputs, out of planes of kBits of a code from bit
// kFirst on.
template <int kBits, int kFirst, int kQuad>
KVL_LANES IntVec OfPlane(const uint8_t* plane) {
  constexpr int kLines = kBits;  // 8 / kBits quads share one
  const IntVec line = LoadWords(plane + kQuad % kLines * kLine);
  constexpr int kFrom = kQuad / kLines * kBits;
  return And(ShiftBy<kFirst - kFrom>(line), ((1 << kBits) - 1) * 0x01010101 << kFirst);
}

template <WeightType kType, int kQuad>
KVL_LANES IntVec OfQuad(const uint8_t* codes) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kPlane = kGroupOuts * kBlockIns / 8;  // bytes for each bit
  if constexpr (kLayout.bits == 8) {
    const IntVec code = LoadWords(codes + kQuad * kLine);
    return kHasDots ? AddBytes(code, SetBytes(128)) : code;
  } else if constexpr (kLayout.bits == 2) {
    return OfPlane<2, 0, kQuad>(codes);
  } else if constexpr (kLayout.bits == 3) {
    return Or(OfPlane<2, 0, kQuad>(codes), OfPlane<1, 2, kQuad>(codes + 2 * kPlane));
  } else {
    const IntVec low = OfPlane<4, 0, kQuad>(codes);
    if constexpr (kLayout.bits == 5) return Or(low, OfPlane<1, 4, kQuad>(codes + 4 * kPlane));
    if constexpr (kLayout.bits == 6) return Or(low, OfPlane<2, 4, kQuad>(codes + 4 * kPlane));
    if constexpr (kLayout.table == NumberTable::kNone) return low;
    constexpr bool kIsFp4 = kLayout.table == NumberTable::kFp4;
    const IntVec number = ShuffleBytes(LoadTable(kIsFp4 ? kFp4Values : kNonLinearValues), low);
    return ZeroOf<kType>() == 0 ? number : AddBytes(number, SetBytes(ZeroOf<kType>()));
  }
}

template <WeightType kType>
KVL_LANES void WidenCodes(const uint8_t* codes, uint8_t (&to)[kQuads][kLine]) {
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    const uint8_t* const from = codes + h * kVecBytes;
    StoreBytes(&to[0][h * kVecBytes], OfQuad<kType, 0>(from));
    StoreBytes(&to[1][h * kVecBytes], OfQuad<kType, 1>(from));
    StoreBytes(&to[2][h * kVecBytes], OfQuad<kType, 2>(from));
    StoreBytes(&to[3][h * kVecBytes], OfQuad<kType, 3>(from));
    StoreBytes(&to[4][h * kVecBytes], OfQuad<kType, 4>(from));
    StoreBytes(&to[5][h * kVecBytes], OfQuad<kType, 5>(from));
    StoreBytes(&to[6][h * kVecBytes], OfQuad<kType, 6>(from));
    StoreBytes(&to[7][h * kVecBytes], OfQuad<kType, 7>(from));
  }
}

// --- Scales. Those of blocks are floats; those of units stay integers, which products of integers
// are multiplied with. ---

template <WeightType kType>
KVL_LANES Vec BlockScales(const uint8_t* group, int first) {
  if constexpr (LayoutOfBlocks(kType).has_exponents) return FromExponents(LoadBytes(group + first));
  return LoadF16(group + 2 * first);
}

// What the sums of rows are multiplied with besides: short blocks' minima (which are added, so with
// a minus) or the zero of their codes; of long blocks the scales of units' minima.
template <WeightType kType>
KVL_LANES Vec BlockMins(const uint8_t* group, int first, Vec scale) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  if constexpr (!kLayout.has_min) return scale * Set1(ZeroOf<kType>());
  const Vec min = LoadF16(group + kLayout.min_offset() + 2 * first);
  return kLayout.units() == 0 ? Zero() - min : min;
}

template <WeightType kType>
constexpr bool HasMins() {
  return LayoutOfBlocks(kType).has_min || ZeroOf<kType>() != 0;
}

// Scales of a unit of one vector of outputs, as integers of 32 bits.
template <WeightType kType>
KVL_LANES IntVec UnitScales32(const uint8_t* group, int unit, int first) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  const uint8_t* const stored = group + kLayout.unit_scale_offset() + unit * kGroupOuts + first;
  if constexpr (kLayout.unit_scales == UnitScales::kSigned) return LoadSignedBytes(stored);
  if constexpr (kLayout.unit_scales == UnitScales::kNibbles) return And(LoadBytes(stored), 15);
  return LoadBytes(stored);
}

// What the sums of a unit's rows are multiplied with; BlockMins comes on top.
template <WeightType kType>
KVL_LANES Vec UnitMins(const uint8_t* group, int unit, int first) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  if constexpr (!kLayout.has_min) return ToFloats(UnitScales32<kType>(group, unit, first));
  const int place = unit * kGroupOuts + first;
  if constexpr (kLayout.unit_scales == UnitScales::kNibbles) {
    return ToFloats(ShiftRight(LoadBytes(group + kLayout.unit_scale_offset() + place), 4));
  }
  return ToFloats(LoadBytes(group + kLayout.unit_min_offset() + place));
}

// As dots take them: with VNNI integers of 32 bits, else each twice in 16 bits.
KVL_LANES IntVec ForDots(IntVec scales) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return scales;
#else
  return _mm256_or_si256(_mm256_slli_epi32(scales, 16),
                         _mm256_and_si256(scales, _mm256_set1_epi32(0xffff)));
#endif
}

template <WeightType kType>
using OfType = std::integral_constant<WeightType, kType>;

// Calls fn with the type as a constant.
template <typename F>
void ForBlockType(WeightType type, const F& fn) {
  switch (type) {
    using enum WeightType;
    case kQ4_0:
      return fn(OfType<kQ4_0>());
    case kQ4_1:
      return fn(OfType<kQ4_1>());
    case kQ5_0:
      return fn(OfType<kQ5_0>());
    case kQ5_1:
      return fn(OfType<kQ5_1>());
    case kQ8_0:
      return fn(OfType<kQ8_0>());
    case kQ2_K:
      return fn(OfType<kQ2_K>());
    case kQ3_K:
      return fn(OfType<kQ3_K>());
    case kQ4_K:
      return fn(OfType<kQ4_K>());
    case kQ5_K:
      return fn(OfType<kQ5_K>());
    case kQ6_K:
      return fn(OfType<kQ6_K>());
    case kIq4Nl:
      return fn(OfType<kIq4Nl>());
    case kIq4Xs:
      return fn(OfType<kIq4Xs>());
    case kMxfp4:
      return fn(OfType<kMxfp4>());
    case kBf16:
    case kF32:
      return;  // no blocks
  }
}

}  // namespace
}  // namespace kvlathe
