// The products of block_product.h, in vectors as wide as the flags of the file allow.
//
// Codes of 16 outputs x up to 256 inputs become bytes in L1, as wide as they are multiplied, and
// every row of the panel passes over them: vpmaddubsw sums up neighbours in 16 bits, so many of
// which are added as cannot overflow, and vpmaddwd makes them 32 bits. Numbers of 8 bits with a sign
// meet rows whose signs are turned in their place. Where the file has VNNI, one instruction does
// both, and such numbers are raised by 128.
#pragma once

#include <type_traits>

#include "cpu/kernels/lanes.h"
#include "cpu/kernels/linear/blocks/block_layout.h"
#include "cpu/kernels/linear/blocks/block_product.h"

namespace kvlathe {
namespace {

constexpr int kHalves = kGroupOuts / kLanes;  // vectors of 16 outputs
constexpr int kQuads = kBlockIns / 4;
constexpr int kLine = kGroupOuts * 4;         // bytes of a quad
constexpr int kVecBytes = kLanes * 4;
constexpr int kTileBlocks = kLongBlock / kBlockIns;

// Bytes of 16 outputs x up to 256 inputs, and the factors of their units.
struct Tile {
  alignas(64) uint8_t codes[kTileBlocks][kQuads][kLine];
  alignas(64) float scales[kMaxUnits][kGroupOuts];
  alignas(64) float mins[kMaxUnits][kGroupOuts];
};

#ifdef __AVX512F__
KVL_LANES IntVec Or(IntVec a, IntVec b) { return _mm512_or_si512(a, b); }
template <int kBits>
KVL_LANES IntVec ShiftRightBy(IntVec x) { return _mm512_srli_epi16(x, kBits); }
template <int kBits>
KVL_LANES IntVec ShiftLeftBy(IntVec x) { return _mm512_slli_epi16(x, kBits); }
KVL_LANES IntVec SetBytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
KVL_LANES IntVec AddBytes(IntVec a, IntVec b) { return _mm512_add_epi8(a, b); }
KVL_LANES void StoreBytes(void* p, IntVec x) { _mm512_store_si512(p, x); }
KVL_LANES IntVec Broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
}
KVL_LANES Vec FromExponents(IntVec e) {
  const IntVec normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const IntVec subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, subnormal));
}
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec codes, IntVec row) {
  return _mm512_dpbusd_epi32(sums, codes, row);
}
#else
#ifdef __AVXVNNI__
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec codes, IntVec row) {
  return _mm256_dpbusd_avx_epi32(sums, codes, row);
}
#endif
KVL_LANES IntVec Or(IntVec a, IntVec b) { return _mm256_or_si256(a, b); }
template <int kBits>
KVL_LANES IntVec ShiftRightBy(IntVec x) { return _mm256_srli_epi16(x, kBits); }
template <int kBits>
KVL_LANES IntVec ShiftLeftBy(IntVec x) { return _mm256_slli_epi16(x, kBits); }
KVL_LANES IntVec SetBytes(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
KVL_LANES IntVec AddBytes(IntVec a, IntVec b) { return _mm256_add_epi8(a, b); }
KVL_LANES void StoreBytes(void* p, IntVec x) { _mm256_store_si256(static_cast<__m256i*>(p), x); }
KVL_LANES IntVec Broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm256_set1_epi32(four);
}
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

// What a byte of the tile is: the code, or where numbers have a sign, on machines with VNNI the
// number + 128, without the number.
template <WeightType kType>
constexpr bool HasSignedNumbers() {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  return kLayout.bits == 8 || kLayout.table == CodeTable::kNonLinear;
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
  if (kLayout.table == CodeTable::kFp4) return 12;
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
    if constexpr (kLayout.table == CodeTable::kNone) return low;
    constexpr bool kIsFp4 = kLayout.table == CodeTable::kFp4;
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

// Scales and minima of one vector of outputs; those of blocks with units are multiplied later.
template <WeightType kType>
KVL_LANES Vec BlockScales(const uint8_t* group, int first) {
  if constexpr (LayoutOfBlocks(kType).has_exponents) return FromExponents(LoadBytes(group + first));
  return LoadF16(group + 2 * first);
}

template <WeightType kType>
KVL_LANES void WidenFactors(const uint8_t* group, int first_unit, Tile* tile) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr float kZero = ZeroOf<kType>();
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    const int first = h * kLanes;
    const Vec scale = BlockScales<kType>(group, first);
    Vec min = Zero();
    if constexpr (kLayout.has_min) min = LoadF16(group + kLayout.min_offset() + 2 * first);
    if constexpr (kLayout.units() == 0) {
      Store(&tile->scales[first_unit][first], scale);
      Store(&tile->mins[first_unit][first], kLayout.has_min ? Zero() - min : scale * Set1(kZero));
    } else {
      for (int u = 0; u < kLayout.units(); ++u) {
        const uint8_t* const stored =
            group + kLayout.unit_scale_offset() + u * kGroupOuts + first;
        IntVec factor, of_min;
        if constexpr (kLayout.unit_scales == UnitScales::kSigned) {
          factor = LoadSignedBytes(stored);
        } else if constexpr (kLayout.unit_scales == UnitScales::kNibbles) {
          factor = And(LoadBytes(stored), 15);
          of_min = ShiftRight(LoadBytes(stored), 4);
        } else {
          factor = LoadBytes(stored);
          of_min = LoadBytes(stored + kLayout.unit_min_offset() - kLayout.unit_scale_offset());
        }
        const Vec of_unit = scale * ToFloats(factor);
        Store(&tile->scales[u][first], of_unit);
        if constexpr (kLayout.has_min) {
          Store(&tile->mins[u][first], min * ToFloats(of_min));
        } else {
          Store(&tile->mins[u][first], of_unit * Set1(kZero));
        }
      }
    }
  }
}

// The tile of n_blocks times 32 inputs from `group` on: a long block, or several short ones.
template <WeightType kType>
void WidenTile(const uint8_t* group, int n_blocks, Tile* tile) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kAheadBytes = 3072;  // what 100 ns bring
  for (int b = 0; b < n_blocks; ++b) {
    if (kLayout.units() == 0 || b == 0) WidenFactors<kType>(group, b, tile);
    const uint8_t* codes = group + kLayout.code_offset();
    if constexpr (kLayout.units() == 0) {
      group += kLayout.group_bytes();
    } else {
      codes += b * kLayout.code_bytes();
    }
    for (int line = 0; line < kLayout.code_bytes(); line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + line + kAheadBytes), _MM_HINT_T0);
    }
    WidenCodes<kType>(codes, tile->codes[b]);
  }
}

// --- Dots of bytes with rows. ---

// Quads whose products of 16 bits are summed up without overflow: numbers reach kMax, codes of rows
// 127, and there are two products in each.
template <WeightType kType>
constexpr int QuadsInWords() {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  if (HasSignedNumbers<kType>()) return 1;
  constexpr int kMax = kLayout.table == CodeTable::kFp4 ? 24 : (1 << kLayout.bits) - 1;
  constexpr int kUnitQuads = kLayout.unit / 4;
  int n = kUnitQuads;
  while (n * kMax * 2 * 127 > 32767) n /= 2;
  return n;
}

template <WeightType kType>
struct DotsOf {
  static constexpr int kUnitQuads = LayoutOfBlocks(kType).unit / 4;
  static constexpr bool kIsSigned = HasSignedNumbers<kType>();

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  template <int kRows>
  KVL_LANES static void Add(const uint8_t* codes, const int8_t* x, int64_t x_stride,
                            IntVec (&sums)[kRows][kHalves]) {
#pragma GCC unroll 8
    for (int q = 0; q < kUnitQuads; ++q) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const IntVec four = Broadcast4(x + r * x_stride + 4 * q);
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          sums[r][h] =
              AddByteDots(sums[r][h], LoadWords(codes + q * kLine + h * kVecBytes), four);
        }
      }
    }
  }
#else
  template <int kRows>
  KVL_LANES static void Add(const uint8_t* codes, const int8_t* x, int64_t x_stride,
                            IntVec (&sums)[kRows][kHalves]) {
    constexpr int kRun = QuadsInWords<kType>();
#pragma GCC unroll 8
    for (int first = 0; first < kUnitQuads; first += kRun) {
      IntVec words[kRows][kHalves];
#pragma GCC unroll 8
      for (int q = first; q < first + kRun; ++q) {
        IntVec code[kHalves];
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) code[h] = LoadWords(codes + q * kLine + h * kVecBytes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const IntVec four = Broadcast4(x + r * x_stride + 4 * q);
#pragma GCC unroll 2
          for (int h = 0; h < kHalves; ++h) {
            IntVec pairs;
            if constexpr (kIsSigned) {
              pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code[h]),
                                           _mm256_sign_epi8(four, code[h]));
            } else {
              pairs = _mm256_maddubs_epi16(code[h], four);
            }
            words[r][h] = q == first ? pairs : _mm256_add_epi16(words[r][h], pairs);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          const IntVec ints = _mm256_madd_epi16(words[r][h], _mm256_set1_epi16(1));
          sums[r][h] = first == 0 ? ints : _mm256_add_epi32(sums[r][h], ints);
        }
      }
    }
  }
#endif
};

// Adds the tile's part to the sums [kRows][16] of rows.
template <WeightType kType, int kRows>
void AddRows(const Tile& tile, int n_blocks, const QuantizedRows& x, int64_t first_block,
             float* sums) {
  constexpr int kUnits = kBlockIns / LayoutOfBlocks(kType).unit;  // of 32 inputs
  constexpr bool kHasMins = LayoutOfBlocks(kType).has_min || ZeroOf<kType>() != 0;
  Vec total[kRows][kHalves];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) total[r][h] = Load(sums + r * kGroupOuts + h * kLanes);
  }
  const int8_t* codes = x.codes + first_block * kBlockIns;
  const RowBlock* blocks = x.blocks + first_block;
  for (int b = 0; b < n_blocks; ++b, codes += kBlockIns, ++blocks) {
#pragma GCC unroll 2
    for (int u = 0; u < kUnits; ++u) {
      IntVec dots[kRows][kHalves] = {};
      DotsOf<kType>::template Add<kRows>(tile.codes[b][u * kQuads / kUnits],
                                         codes + u * kBlockIns / kUnits, x.stride, dots);
      const int unit = b * kUnits + u;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const RowBlock& row = blocks[r * x.block_stride];
        const Vec scale = Set1(row.scale);
        const Vec sum = Set1(kUnits == 1 ? row.sum : row.half_sums[u]);
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          const Vec product = ToFloats(dots[r][h]) * scale;
          total[r][h] = Fma(product, Load(&tile.scales[unit][h * kLanes]), total[r][h]);
          if constexpr (kHasMins) {
            total[r][h] = Fma(Zero() - sum, Load(&tile.mins[unit][h * kLanes]), total[r][h]);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) Store(sums + r * kGroupOuts + h * kLanes, total[r][h]);
  }
}

// --- A part of a product. ---

constexpr int kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kMaxPanel = 256;            // rows; their sums are 16 KiB
constexpr int64_t kPanelBytes = 256 << 10;    // of rows, which stay in L2

template <WeightType kType>
void AddRowsOfTile(const Tile& tile, int n_blocks, const QuantizedRows& x, int64_t n_rows,
                   int64_t first_block, float* sums) {
  int64_t row = 0;
  for (; row + kTileRows <= n_rows; row += kTileRows) {
    AddRows<kType, kTileRows>(tile, n_blocks, x.From(row), first_block, sums + row * kGroupOuts);
  }
  if constexpr (kTileRows > 4) {
    for (; row + 4 <= n_rows; row += 4) {
      AddRows<kType, 4>(tile, n_blocks, x.From(row), first_block, sums + row * kGroupOuts);
    }
  }
  for (; row + 2 <= n_rows; row += 2) {
    AddRows<kType, 2>(tile, n_blocks, x.From(row), first_block, sums + row * kGroupOuts);
  }
  if (row < n_rows) {
    AddRows<kType, 1>(tile, n_blocks, x.From(row), first_block, sums + row * kGroupOuts);
  }
}

// Sums plus bias to y.
void StoreGroup(const LinearPart& part, int64_t first_row, int64_t n_rows, int64_t first_out,
                const float* sums) {
  const int64_t n_out = part.n_out - first_out < kGroupOuts ? part.n_out - first_out : kGroupOuts;
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t offset = (first_row + r) * part.y_stride + first_out;
    for (int64_t j = 0; j < n_out; j += kLanes) {
      const int64_t n = n_out - j;
      Vec value = Load(sums + r * kGroupOuts + j);
      if (part.bias != nullptr) value = value + LoadFirst(part.bias + first_out + j, n);
      if (part.y_type == DType::kBf16) {
        StoreFirstBf16(static_cast<uint16_t*>(part.y) + offset + j, n, value);
        continue;
      }
      float* const to = static_cast<float*>(part.y) + offset + j;
      if (part.accumulate) value = value + LoadFirst(to, n);
      StoreFirst(to, n, value);
    }
  }
}

template <WeightType kType>
void MultiplyBlocks(const LinearPart& part, const QuantizedRows& x) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  int64_t panel = kPanelBytes / part.n_in / kTileRows * kTileRows;
  panel = panel < 64 ? 64 : panel > kMaxPanel ? kMaxPanel : panel;
  Tile tile;
  alignas(64) float sums[kMaxPanel * kGroupOuts];
  const int64_t n_blocks = part.n_in / kBlockIns;
  for (int64_t row = 0; row < part.n_rows; row += panel) {
    const int64_t n_rows = part.n_rows - row < panel ? part.n_rows - row : panel;
    const QuantizedRows rows = x.From(row);
    const uint8_t* w = static_cast<const uint8_t*>(part.w);
    for (int64_t out = 0; out < part.n_out; out += kGroupOuts, w += part.w_stride) {
      for (int64_t i = 0; i < n_rows * kGroupOuts; i += kLanes) Store(sums + i, Zero());
      for (int64_t b = 0; b < n_blocks; b += kTileBlocks) {
        const int n = static_cast<int>(n_blocks - b < kTileBlocks ? n_blocks - b : kTileBlocks);
        WidenTile<kType>(w + b * kBlockIns / kLayout.block * kLayout.group_bytes(), n, &tile);
        AddRowsOfTile<kType>(tile, n, rows, n_rows, b, sums);
      }
      StoreGroup(part, row, n_rows, out, sums);
    }
  }
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
