// The products of block_product.h, in vectors as wide as the flags of the file allow.
//
// Bytes of 16 outputs x 32 inputs meet rows four inputs at a time: vpmaddubsw sums up neighbours in
// 16 bits, so many of which are added as cannot overflow, and vpmaddwd multiplies them with the
// scales of their unit and makes them 32 bits. Numbers of 8 bits with a sign meet rows whose signs
// are turned in their place. Where the file has VNNI, one instruction sums up four products in 32
// bits, and such numbers are raised by 128.
//
// Few rows meet bytes as they come out of the planes. For many, the bytes of 16 outputs x up to 256
// inputs go to L1, and all rows of a panel pass over them. Both add the same numbers in the same
// order, so that a row has the same bits in either.
#pragma once

#include <utility>

#include "cpu/kernels/linear/blocks/block_codes_lanes.h"
#include "cpu/kernels/linear/blocks/block_product.h"

namespace kvlathe {
namespace {

constexpr int64_t kAheadBytes = 4096;  // fetched ahead: more than 100 ns bring

// --- Dots of bytes with rows. ---

// Quads whose products of 16 bits are summed up without overflow: numbers reach kMax, codes of rows
// 127, and there are two products in each.
template <WeightType kType>
constexpr int QuadsInWords() {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  if (HasSignedNumbers<kType>()) return 1;
  constexpr int kMax = kLayout.table == NumberTable::kFp4 ? 24 : (1 << kLayout.bits) - 1;
  int n = kLayout.unit / 4;
  while (n * kMax * 2 * 127 > 32767) n /= 2;
  return n;
}

// Sums of products of 32 inputs, of kRows rows with 16 outputs.
template <WeightType kType, int kRows>
struct BlockDots {
  static constexpr int kUnitQuads = LayoutOfBlocks(kType).unit / 4;
  static constexpr bool kHasUnits = LayoutOfBlocks(kType).units() > 0;

  IntVec words[kRows][kHalves];  // of a run in 16 bits; with VNNI of a unit in 32 bits
  IntVec sums[kRows][kHalves];

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  template <int kQ>
  KVL_LANES void Add(int h, IntVec code, int r, IntVec four, IntVec unit_scales) {
    if constexpr (kQ % kUnitQuads == 0) words[r][h] = SetWords(0);
    words[r][h] = AddByteDots(words[r][h], code, four);
    if constexpr (kQ % kUnitQuads != kUnitQuads - 1) return;
    const IntVec ints = kHasUnits ? MultiplyInts(words[r][h], unit_scales) : words[r][h];
    sums[r][h] = kQ < kUnitQuads ? ints : AddInts(sums[r][h], ints);
  }
#else
  template <int kQ>
  KVL_LANES void Add(int h, IntVec code, int r, IntVec four, IntVec unit_scales) {
    constexpr int kRun = QuadsInWords<kType>();
    IntVec pairs;
    if constexpr (HasSignedNumbers<kType>()) {
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(four, code));
    } else {
      pairs = _mm256_maddubs_epi16(code, four);
    }
    words[r][h] = kQ % kRun == 0 ? pairs : AddWords(words[r][h], pairs);
    if constexpr (kQ % kRun != kRun - 1) return;
    const IntVec ints =
        _mm256_madd_epi16(words[r][h], kHasUnits ? unit_scales : _mm256_set1_epi16(1));
    sums[r][h] = kQ < kRun ? ints : AddInts(sums[r][h], ints);
  }
#endif
};

// --- Factors of sums. ---

// Adds a short block: its dots, and its minima times the sums of rows.
template <WeightType kType, int kRows>
KVL_LANES void AddShortBlock(const BlockDots<kType, kRows>& dots, const RowBlock* rows,
                             int64_t row_stride, const Vec (&scales)[kHalves],
                             const Vec (&mins)[kHalves], Vec (&total)[kRows][kHalves]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const RowBlock& row = rows[r * row_stride];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      total[r][h] = Fma(ToFloats(dots.sums[r][h]) * Set1(row.scale), scales[h], total[r][h]);
      if constexpr (HasMins<kType>()) total[r][h] = Fma(Set1(row.minus_sum), mins[h], total[r][h]);
    }
  }
}

// The same of a part of a long block, whose scale comes at its end.
template <WeightType kType, int kRows>
KVL_LANES void AddLongPart(const BlockDots<kType, kRows>& dots, const RowBlock* rows,
                           int64_t row_stride, Vec (&total)[kRows][kHalves]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      total[r][h] = Fma(ToFloats(dots.sums[r][h]), Set1(rows[r * row_stride].scale), total[r][h]);
    }
  }
}

// Minus the sum of a row's inputs of a unit.
template <WeightType kType>
KVL_LANES Vec MinusSum(const RowBlock& row, int unit) {
  return Set1(LayoutOfBlocks(kType).unit == kBlockIns ? row.minus_sum
                                                      : row.minus_half_sums[unit % 2]);
}

// --- Few rows. ---

constexpr int kFewRows = 4;

// Adds 32 inputs of planes to dots.
template <WeightType kType, int kRows>
KVL_LANES void AddPlanes(const uint8_t* codes, const IntVec (&unit_scales)[2][kHalves],
                         const int8_t* x, int64_t x_stride, BlockDots<kType, kRows>* dots) {
  constexpr int kUnitQuads = LayoutOfBlocks(kType).unit / 4;
  const auto add = [&]<int kQ>(std::integral_constant<int, kQ>) __attribute__((always_inline)) {
    IntVec code[kHalves];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) code[h] = OfQuad<kType, kQ>(codes + h * kVecBytes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const IntVec four = BroadcastFour(x + r * x_stride + 4 * kQ);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        dots->template Add<kQ>(h, code[h], r, four, unit_scales[kQ / kUnitQuads % 2][h]);
      }
    }
  };
  [&]<int... kQ>(std::integer_sequence<int, kQ...>) __attribute__((always_inline)) {
    (add(std::integral_constant<int, kQ>()), ...);
  }
  (std::make_integer_sequence<int, kQuads>());
}

KVL_LANES void FetchAhead(const uint8_t* codes, int n_bytes) {
  for (int line = 0; line < n_bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + kAheadBytes + line), _MM_HINT_T0);
  }
}

template <WeightType kType, int kRows>
KVL_LANES void StreamShortBlock(const uint8_t* group, const int8_t* x, int64_t x_stride,
                                const RowBlock* rows, int64_t row_stride,
                                Vec (&total)[kRows][kHalves]) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  FetchAhead(group, kLayout.group_bytes());
  BlockDots<kType, kRows> dots;
  AddPlanes<kType, kRows>(group + kLayout.code_offset(), {}, x, x_stride, &dots);
  Vec scales[kHalves], mins[kHalves];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    scales[h] = BlockScales<kType>(group, h * kLanes);
    mins[h] = BlockMins<kType>(group, h * kLanes, scales[h]);
  }
  AddShortBlock<kType, kRows>(dots, rows, row_stride, scales, mins, total);
}

template <WeightType kType, int kRows>
KVL_LANES void StreamLongBlock(const uint8_t* group, const int8_t* x, int64_t x_stride,
                               const RowBlock* rows, int64_t row_stride,
                               Vec (&total)[kRows][kHalves]) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kUnits = kBlockIns / kLayout.unit;  // of 32 inputs
  Vec of_dots[kRows][kHalves] = {}, of_mins[kRows][kHalves] = {};
  for (int b = 0; b < kLongBlock / kBlockIns; ++b, x += kBlockIns, ++rows) {
    const uint8_t* const codes = group + kLayout.code_offset() + b * kLayout.code_bytes();
    FetchAhead(codes, kLayout.code_bytes());
    IntVec unit_scales[2][kHalves];
#pragma GCC unroll 2
    for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const int unit = b * kUnits + u, first = h * kLanes;
        unit_scales[u][h] = ForDots(UnitScales32<kType>(group, unit, first));
        if constexpr (!HasMins<kType>()) continue;
        const Vec mins = UnitMins<kType>(group, unit, first);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          of_mins[r][h] = Fma(MinusSum<kType>(rows[r * row_stride], unit), mins, of_mins[r][h]);
        }
      }
    }
    BlockDots<kType, kRows> dots;
    AddPlanes<kType, kRows>(codes, unit_scales, x, x_stride, &dots);
    AddLongPart<kType, kRows>(dots, rows, row_stride, of_dots);
  }
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    const Vec scales = BlockScales<kType>(group, h * kLanes);
    const Vec mins = BlockMins<kType>(group, h * kLanes, scales);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      total[r][h] = Fma(of_dots[r][h], scales, total[r][h]);
      if constexpr (HasMins<kType>()) total[r][h] = Fma(of_mins[r][h], mins, total[r][h]);
    }
  }
}

// Sums [kRows][16] of 16 outputs whose groups begin at w.
template <WeightType kType, int kRows>
void StreamRows(const uint8_t* w, int64_t n_in, const QuantizedRows& x, float* sums) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  Vec total[kRows][kHalves] = {};
  for (int64_t in = 0; in < n_in; in += kLayout.block, w += kLayout.group_bytes()) {
    const int8_t* const codes = x.codes + in;
    const RowBlock* const rows = x.blocks + in / kBlockIns;
    if constexpr (kLayout.units() == 0) {
      StreamShortBlock<kType, kRows>(w, codes, x.stride, rows, x.block_stride, total);
    } else {
      StreamLongBlock<kType, kRows>(w, codes, x.stride, rows, x.block_stride, total);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) Store(sums + r * kGroupOuts + h * kLanes, total[r][h]);
  }
}

template <WeightType kType>
void StreamFewRows(const uint8_t* w, int64_t n_in, const QuantizedRows& x, int64_t n_rows,
                   float* sums) {
  switch (n_rows) {
    case 1:
      return StreamRows<kType, 1>(w, n_in, x, sums);
    case 2:
      return StreamRows<kType, 2>(w, n_in, x, sums);
    case 3:
      return StreamRows<kType, 3>(w, n_in, x, sums);
    default:
      return StreamRows<kType, 4>(w, n_in, x, sums);
  }
}

// --- Many rows. ---

constexpr int kTileBlocks = kLongBlock / kBlockIns;

// Bytes of 16 outputs x up to 256 inputs, of a long block or of several short ones, and factors.
struct Tile {
  alignas(64) uint8_t codes[kTileBlocks][kQuads][kLine];
  alignas(64) float scales[kTileBlocks][kGroupOuts];  // a long block has one
  alignas(64) float mins[kTileBlocks][kGroupOuts];
  alignas(64) uint8_t unit_scales[kMaxUnits][kLine];  // as dots take them
  alignas(64) float unit_mins[kMaxUnits][kGroupOuts];
};

template <WeightType kType>
KVL_LANES void WidenFactors(const uint8_t* group, int block, Tile* tile) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    const int first = h * kLanes;
    const Vec scale = BlockScales<kType>(group, first);
    Store(&tile->scales[block][first], scale);
    Store(&tile->mins[block][first], BlockMins<kType>(group, first, scale));
    for (int u = 0; u < kLayout.units(); ++u) {
      StoreBytes(&tile->unit_scales[u][4 * first], ForDots(UnitScales32<kType>(group, u, first)));
      if constexpr (HasMins<kType>()) {
        Store(&tile->unit_mins[u][first], UnitMins<kType>(group, u, first));
      }
    }
  }
}

// The tile of n_blocks times 32 inputs from `group` on.
template <WeightType kType>
void WidenTile(const uint8_t* group, int n_blocks, Tile* tile) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  for (int b = 0; b < n_blocks; ++b) {
    if (kLayout.units() == 0 || b == 0) WidenFactors<kType>(group, b, tile);
    const uint8_t* codes = group + kLayout.code_offset();
    if constexpr (kLayout.units() == 0) {
      group += kLayout.group_bytes();
    } else {
      codes += b * kLayout.code_bytes();
    }
    FetchAhead(codes, kLayout.code_bytes());
    WidenCodes<kType>(codes, tile->codes[b]);
  }
}

// Adds the dots of 32 inputs of a tile.
template <WeightType kType, int kRows>
KVL_LANES void AddBytesOfTile(const Tile& tile, int b, const int8_t* x, int64_t x_stride,
                              BlockDots<kType, kRows>* dots) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kUnitQuads = kLayout.unit / 4;
  const auto add = [&]<int kQ>(std::integral_constant<int, kQ>) __attribute__((always_inline)) {
    const int unit = kLayout.units() == 0 ? 0 : b * (kQuads / kUnitQuads) + kQ / kUnitQuads;
    IntVec code[kHalves];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) code[h] = LoadWords(&tile.codes[b][kQ][h * kVecBytes]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const IntVec four = BroadcastFour(x + r * x_stride + 4 * kQ);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        dots->template Add<kQ>(h, code[h], r, four,
                               LoadWords(&tile.unit_scales[unit][h * kVecBytes]));
      }
    }
  };
  [&]<int... kQ>(std::integer_sequence<int, kQ...>) __attribute__((always_inline)) {
    (add(std::integral_constant<int, kQ>()), ...);
  }
  (std::make_integer_sequence<int, kQuads>());
}

// Adds the minima of a long block.
template <WeightType kType, int kRows>
KVL_LANES void AddMinsOfTile(const Tile& tile, const RowBlock* rows, int64_t row_stride,
                             Vec (&total)[kRows][kHalves]) {
  constexpr int kUnits = LayoutOfBlocks(kType).units();
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    Vec of_mins[kHalves] = {};
    for (int u = 0; u < kUnits; ++u) {
      const RowBlock& row = rows[r * row_stride + u * kTileBlocks / kUnits];
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        of_mins[h] = Fma(MinusSum<kType>(row, u), Load(&tile.unit_mins[u][h * kLanes]), of_mins[h]);
      }
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      total[r][h] = Fma(of_mins[h], Load(&tile.mins[0][h * kLanes]), total[r][h]);
    }
  }
}

// Adds the tile's part to the sums [kRows][16] of rows, which begin at the tile's first input.
template <WeightType kType, int kRows>
void AddRows(const Tile& tile, int n_blocks, const QuantizedRows& x, float* sums) {
  constexpr bool kIsLong = LayoutOfBlocks(kType).units() > 0;
  Vec total[kRows][kHalves], of_dots[kRows][kHalves] = {};
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) total[r][h] = Load(sums + r * kGroupOuts + h * kLanes);
  }
  for (int b = 0; b < n_blocks; ++b) {
    BlockDots<kType, kRows> dots;
    AddBytesOfTile<kType, kRows>(tile, b, x.codes + b * kBlockIns, x.stride, &dots);
    if constexpr (kIsLong) {
      AddLongPart<kType, kRows>(dots, x.blocks + b, x.block_stride, of_dots);
    } else {
      Vec scales[kHalves], mins[kHalves];
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        scales[h] = Load(&tile.scales[b][h * kLanes]);
        mins[h] = Load(&tile.mins[b][h * kLanes]);
      }
      AddShortBlock<kType, kRows>(dots, x.blocks + b, x.block_stride, scales, mins, total);
    }
  }
  if constexpr (kIsLong) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        total[r][h] = Fma(of_dots[r][h], Load(&tile.scales[0][h * kLanes]), total[r][h]);
      }
    }
    if constexpr (HasMins<kType>()) {
      AddMinsOfTile<kType, kRows>(tile, x.blocks, x.block_stride, total);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) Store(sums + r * kGroupOuts + h * kLanes, total[r][h]);
  }
}

constexpr int kTileRows = kLanes == 16 ? 8 : 4;

template <WeightType kType>
void AddRowsOfTile(const Tile& tile, int n_blocks, const QuantizedRows& x, int64_t n_rows,
                   float* sums) {
  int64_t row = 0;
  for (; row + kTileRows <= n_rows; row += kTileRows) {
    AddRows<kType, kTileRows>(tile, n_blocks, x.From(row), sums + row * kGroupOuts);
  }
  if constexpr (kTileRows > 4) {
    for (; row + 4 <= n_rows; row += 4) {
      AddRows<kType, 4>(tile, n_blocks, x.From(row), sums + row * kGroupOuts);
    }
  }
  for (; row + 2 <= n_rows; row += 2) {
    AddRows<kType, 2>(tile, n_blocks, x.From(row), sums + row * kGroupOuts);
  }
  if (row < n_rows) AddRows<kType, 1>(tile, n_blocks, x.From(row), sums + row * kGroupOuts);
}

// Sums [n_rows][16] of 16 outputs.
template <WeightType kType>
void AddPanel(const uint8_t* w, int64_t n_in, const QuantizedRows& x, int64_t n_rows, float* sums) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  const int64_t n_blocks = n_in / kBlockIns;
  Tile tile;
  for (int64_t i = 0; i < n_rows * kGroupOuts; i += kLanes) Store(sums + i, Zero());
  for (int64_t b = 0; b < n_blocks; b += kTileBlocks) {
    const int n = static_cast<int>(n_blocks - b < kTileBlocks ? n_blocks - b : kTileBlocks);
    WidenTile<kType>(w + b * kBlockIns / kLayout.block * kLayout.group_bytes(), n, &tile);
    AddRowsOfTile<kType>(tile, n, x.FromInput(b * kBlockIns), n_rows, sums);
  }
}

// --- A part of a product. ---

constexpr int64_t kMaxPanel = 256;          // rows; their sums are 16 KiB
constexpr int64_t kPanelBytes = 256 << 10;  // of rows, which stay in L2

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
  int64_t panel = kPanelBytes / part.n_in / kTileRows * kTileRows;
  panel = panel < 64 ? 64 : panel > kMaxPanel ? kMaxPanel : panel;
  alignas(64) float sums[kMaxPanel * kGroupOuts];
  for (int64_t row = 0; row < part.n_rows; row += panel) {
    const int64_t n_rows = part.n_rows - row < panel ? part.n_rows - row : panel;
    const QuantizedRows rows = x.From(row);
    const uint8_t* w = static_cast<const uint8_t*>(part.w);
    for (int64_t out = 0; out < part.n_out; out += kGroupOuts, w += part.w_stride) {
      if (n_rows <= kFewRows) {
        StreamFewRows<kType>(w, part.n_in, rows, n_rows, sums);
      } else {
        AddPanel<kType>(w, part.n_in, rows, n_rows, sums);
      }
      StoreGroup(part, row, n_rows, out, sums);
    }
  }
}

}  // namespace
}  // namespace kvlathe
