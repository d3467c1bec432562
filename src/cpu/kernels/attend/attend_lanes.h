// Attention that multiplies and sums in F32, over vectors of the instruction set that a file is
// compiled for (lanes.h). It reads Bf16 rows where the machine has no BF16 dots, and F32 rows
// everywhere.
//
// Both kinds of rows lie in pairs that a sum takes together (block_layout.h). A vector of Bf16
// words is split by a shift and a mask into the first and the second of kLanes pairs, and each is
// multiplied with its own weight. A vector of F32 is kLanes / 2 whole pairs, which are multiplied
// with a pair of weights; neighbouring sums are added once, at the end of a block. So neither kind
// needs shuffles in its loops, and the sums of a row never depend on the rows beside it.
#pragma once

#include <type_traits>

#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/byte_tiles_lanes.h"
#include "cpu/kernels/attend/code_rows_lanes.h"
#include "cpu/kernels/attend/packed_lanes.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// The most rows of a tile of codes and of one of numbers. A line of numbers that was widened serves
// all rows of the tile.
constexpr int kCodeTileRows = 4;
constexpr int kTileRows = kVecRegisters > 16 ? 4 : 6;

// How many rows go over the blocks together. All of them use K of a block before any of them uses
// its V, so that only K has to stay in L1 meanwhile.
constexpr int kPanelRows = 64;

// Floats from a row of the scratch's q to the next. A constant, so that the rows of a tile have one
// address; a line more than a power of two, so that rows lie in different sets of L1.
constexpr int kQStride = kMaxRank + 16;

struct Scratch {
  alignas(64) float probs[kPanelRows][kBlockSize];
  alignas(64) float sums[kPanelRows][kLanes];
  alignas(64) float q[kPanelRows * kQStride];  // as floats
  // Of a sealed block: the values of K and V, or the numbers of one of them.
  alignas(64) float values[2 * kBlockSize * kMaxRank];
  PanelWeights rounded;
  ByteTileScratch tiles;

  int16_t* numbers() { return reinterpret_cast<int16_t*>(values); }
  uint8_t* small() { return reinterpret_cast<uint8_t*>(values + kBlockSize * kMaxRank); }
  RowState rows[kPanelRows];
};
static_assert(sizeof(Scratch) <= kAttendScratchBytes);

// How lines of a row type meet their weights. A step is the part of a pair that one multiplication
// takes; kVecs vectors of sums make kLanes tokens or dimensions.
template <typename Row>
struct Lines;

template <>
struct Lines<uint16_t> {  // Bf16
  static constexpr int kSteps = 2;
  static constexpr int kVecs = 1;
  static constexpr int kVecElements = 2 * kLanes;
  template <int kStep>
  static KVL_INLINE Vec Line(const uint16_t* p) {
    return kStep == 0 ? LoadFirsts(p) : LoadSeconds(p);
  }
  template <int kStep>
  static KVL_INLINE Vec Weight(const float* pair) {
    return Broadcast(pair + kStep);
  }
  static KVL_INLINE Vec Row(const uint16_t* p) { return LoadBf16(p); }
  static KVL_INLINE float Value(uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    __builtin_memcpy(&value, &wide, sizeof(value));
    return value;
  }
};

template <>
struct Lines<float> {
  static constexpr int kSteps = 1;
  static constexpr int kVecs = 2;
  static constexpr int kVecElements = kLanes;
  template <int kStep>
  static KVL_INLINE Vec Line(const float* p) {
    return Load(p);
  }
  template <int kStep>
  static KVL_INLINE Vec Weight(const float* pair) {
    return BroadcastPair(pair);
  }
  static KVL_INLINE Vec Row(const float* p) { return Load(p); }
  static KVL_INLINE float Value(float x) { return x; }
};

// The panel that a kernel call works on.
struct Panel {
  const AttendParams* p;
  const float* q;  // of its first row, kQStride from row to row
  float log2_scale;
  int first_row;
  int n_rows;
  Scratch* scratch;
  TiledRows tiled = {};

  float* RowOfO(int row) const { return p->o + (first_row + row) * p->o_stride; }
};

template <typename Row>
struct BlockView {
  const Row* k;
  const Row* v;
  const Row* next;  // the block to fetch meanwhile, or null
  int first_entry;
};

// Rows of weights, kStride floats from row to row, one pair per line of kVecs vectors.
template <int kStride>
struct Weights {
  const float* at;
};

// Adds the weights of row r times vector c of the lines to sums[r][c], over n_pairs lines that lie
// line_step elements apart. Weights or lines stay in registers, whichever there are fewer of.
// Meanwhile as many bytes from `next` on are fetched, unless it is null: the tiles of a block fetch
// the next one in the order in which it lies, though they read theirs in columns.
template <typename Row, int kRows, int kCols, int kStride>
KVL_INLINE void AddPairs(Weights<kStride> weights, const Row* lines, int64_t line_step, int n_pairs,
                         const Row* next, Vec (&sums)[kRows][kCols]) {
  using L = Lines<Row>;
  for (int pair = 0; pair < n_pairs; ++pair) {
    Unroll<L::kSteps>([&](auto step) __attribute__((always_inline)) {
      constexpr int kStep = step.value;
      const auto weight = [&](int r) __attribute__((always_inline)) {
        return L::template Weight<kStep>(weights.at + r * kStride + 2 * pair);
      };
      const auto line = [&](int c) __attribute__((always_inline)) {
        return L::template Line<kStep>(lines + c * L::kVecElements);
      };
      if constexpr (kRows > kCols) {
        Vec x[kCols];
        Unroll<kCols>([&](auto c) { x[c.value] = line(c.value); });
        Unroll<kRows>([&](auto r) {
          const Vec w = weight(r.value);
          Unroll<kCols>([&](auto c) {
            sums[r.value][c.value] = AddProduct(sums[r.value][c.value], w, x[c.value]);
          });
        });
      } else {
        Vec w[kRows];
        Unroll<kRows>([&](auto r) { w[r.value] = weight(r.value); });
        Unroll<kCols>([&](auto c) {
          const Vec x = line(c.value);
          Unroll<kRows>([&](auto r) {
            sums[r.value][c.value] = AddProduct(sums[r.value][c.value], w[r.value], x);
          });
        });
      }
    });
    if (next != nullptr) {
      constexpr int kBytes = kCols * L::kVecElements * static_cast<int>(sizeof(Row));
      Unroll<(kBytes + 63) / 64>(
          [&](auto j) { PrefetchLine(reinterpret_cast<const std::byte*>(next) + 64 * j.value); });
      next += kCols * L::kVecElements;
    }
    lines += line_step;
  }
}

template <int kRows, int kCols>
KVL_INLINE void Clear(Vec (&sums)[kRows][kCols]) {
  Unroll<kRows>([&](auto r) { Unroll<kCols>([&](auto c) { sums[r.value][c.value] = Zero(); }); });
}

// The sums c of a row after the parts of pairs were added: those of kLanes tokens or dimensions.
template <typename Row, int kCols>
KVL_INLINE Vec WholeSums(const Vec (&sums)[kCols], int c) {
  if constexpr (Lines<Row>::kVecs == 1) {
    return sums[c];
  } else {
    return SumPairs(sums[2 * c], sums[2 * c + 1]);
  }
}

// Computes the scores of kRows rows against the tokens of kCols vectors of sums.
template <typename Row, int kRows, int kCols>
void ScoreTile(const Panel& panel, const Row* k, const Row* next, int row, float* scores) {
  Vec sums[kRows][kCols];
  Clear(sums);
  AddPairs<Row>(Weights<kQStride>{panel.q + row * kQStride}, k, 2 * kBlockSize,
                panel.p->shape.rank_k / 2, next, sums);
  Unroll<kRows>([&](auto r) {
    Unroll<kCols / Lines<Row>::kVecs>([&](auto c) {
      Store(scores + r.value * kBlockSize + kLanes * c.value,
            WholeSums<Row>(sums[r.value], c.value));
    });
  });
}

// o[r, dims] = shrink * o + probs V for kRows rows and the dimensions of kCols vectors of sums. The
// block has n_valid entries that may be read; the second half of an odd last pair is skipped,
// whatever it holds.
template <typename Row, int kRows, int kCols>
void ValueTile(const Panel& panel, const Row* v, const Row* next, int row, int dim, int n_valid,
               const float* probs) {
  using L = Lines<Row>;
  const int64_t step = int64_t{2} * panel.p->shape.rank_v;
  Vec sums[kRows][kCols];
  Clear(sums);
  AddPairs<Row>(Weights<kBlockSize>{probs}, v, step, n_valid / 2, next, sums);
  if (n_valid % 2 != 0) {
    const int pair = n_valid / 2;
    Unroll<kRows>([&](auto r) {
      const Vec w = L::template Weight<0>(probs + r.value * kBlockSize + 2 * pair);
      Unroll<kCols>([&](auto c) {
        Vec x = L::template Line<0>(v + pair * step + c.value * L::kVecElements);
        if constexpr (L::kSteps == 1) x = ClearSeconds(x);
        sums[r.value][c.value] = Fma(w, x, sums[r.value][c.value]);
      });
    });
  }
  Unroll<kRows>([&](auto r) {
    float* o = panel.RowOfO(row + r.value) + dim;
    const Vec shrink = Set1(panel.scratch->rows[row + r.value].shrink);
    Unroll<kCols / L::kVecs>([&](auto c) {
      const Vec whole = WholeSums<Row>(sums[r.value], c.value);
      Store(o + kLanes * c.value, Fma(shrink, Load(o + kLanes * c.value), whole));
    });
  });
}

// How many vectors of sums a tile of kRows rows has at most in a row: enough sums to hide the
// latency of additions, and few enough to leave registers for the rest.
template <typename Row, int kRows>
constexpr int TileCols() {
  if (kVecRegisters > 16) return kRows > 2 ? 4 : 8;
  if (kRows == 1) return 8;
  if (kRows == 2) return 4;
  return kRows == 3 && Lines<Row>::kVecs == 1 ? 3 : 2;
}

// Calls f(Index<n>{}, col) for tiles that cover n_cols vectors by at most kCols. None has one
// vector alone, which were too few sums, unless n_cols may be odd.
template <int kCols, bool kMayBeOdd = false, typename F>
KVL_INLINE void ForEachTile(int n_cols, const F& f) {
  int col = 0;
  if constexpr (kCols == 3) {
    for (; n_cols - col > 4 || n_cols - col == 3; col += 3) f(Index<3>{}, col);
  } else {
    for (; n_cols - col >= kCols; col += kCols) f(Index<kCols>{}, col);
    if constexpr (kCols > 4) {
      for (; n_cols - col >= 4; col += 4) f(Index<4>{}, col);
    }
  }
  for (; n_cols - col >= 2; col += 2) f(Index<2>{}, col);
  if constexpr (kMayBeOdd) {
    if (col < n_cols) f(Index<1>{}, col);
  }
}

// Computes the scores of the rows of a tile against all tokens of a block. The first tile fetches
// the next block.
template <int kRows, typename Row>
void ScoreRows(const Panel& panel, const BlockView<Row>& block, bool is_first, int row,
               float* scores) {
  using L = Lines<Row>;
  constexpr int kBlockCols = kBlockSize / kLanes * L::kVecs;
  const int n_pairs = panel.p->shape.rank_k / 2;
  const bool fetches = is_first && block.next != nullptr;
  ForEachTile<TileCols<Row, kRows>()>(kBlockCols, [&](auto cols, int col) {
    const int64_t offset = col * L::kVecElements;
    const Row* next = fetches ? block.next + offset * n_pairs : nullptr;
    ScoreTile<Row, kRows, cols.value>(panel, block.k + offset, next, row,
                                      scores + col / L::kVecs * kLanes);
  });
}

// Adds what the turning mean of keys adds to the scores of the rows of a tile, against kCols
// vectors of tokens on either side of the middle of a block: an even part, of cosines, and an odd
// one.
template <int kRows, int kCols>
KVL_INLINE void AddMeanTile(const TurningMean& mean, const float* weights, int col, float* scores) {
  Vec even[kRows][kCols], odd[kRows][kCols];
  Clear(even);
  Clear(odd);
  const float *cos = mean.cos + col * kLanes, *sin = mean.sin + col * kLanes;
  for (int pair = 0; pair < mean.n_pairs; ++pair) {
    Vec x[kCols], y[kCols];
    Unroll<kCols>([&](auto c) KVL_PART {
      x[c.value] = Load(cos + c.value * kLanes);
      y[c.value] = Load(sin + c.value * kLanes);
    });
    Unroll<kRows>([&](auto r) KVL_PART {
      const float* const of_row = weights + r.value * kMeanWeights + pair;
      const Vec of_sin = Broadcast(of_row), of_cos = Broadcast(of_row + mean.n_pairs);
      Unroll<kCols>([&](auto c) KVL_PART {
        even[r.value][c.value] = AddProduct(even[r.value][c.value], of_cos, x[c.value]);
        odd[r.value][c.value] = AddProduct(odd[r.value][c.value], of_sin, y[c.value]);
      });
    });
    cos += kHalfBlock;
    sin += kHalfBlock;
  }
  Unroll<kRows>([&](auto r) KVL_PART {
    Unroll<kCols>([&](auto c) KVL_PART {
      const int distance = (col + c.value) * kLanes;
      float* const behind = scores + r.value * kBlockSize + kHalfBlock + distance;
      float* const before = scores + r.value * kBlockSize + kHalfBlock - distance - kLanes;
      const Vec of_both = even[r.value][c.value], of_sides = odd[r.value][c.value];
      Store(behind, Load(behind) + (of_both + of_sides));
      Store(before, Load(before) + Reversed(of_both - of_sides));
    });
  });
}

template <int kRows>
KVL_INLINE void AddMeanRows(const TurningMean& mean, const float* weights, float* scores) {
  constexpr int kMostCols = kHalfBlock / kLanes;
  constexpr int kCols = kVecRegisters > 16 ? kMostCols : kMostCols / kRows;
  for (int col = 0; col < kMostCols; col += kCols) {
    AddMeanTile<kRows, kCols>(mean, weights, col, scores);
  }
}

template <int kRows>
void AddMean(const Panel& panel, int block, int row, float* scores) {
  constexpr int kStep = kVecRegisters > 16 ? kRows : 2, kTail = kRows % kStep;
  const AttendParams& p = *panel.p;
  const int64_t idx = block - p.kv_begin / kBlockSize;
  const float* const weights =
      p.mean.weights + (idx * p.n_rows + panel.first_row + row) * kMeanWeights;
  for (int first = 0; first + kStep <= kRows; first += kStep) {
    AddMeanRows<kStep>(p.mean, weights + first * kMeanWeights, scores + first * kBlockSize);
  }
  if constexpr (kTail > 0) {
    constexpr int kFirst = kRows - kTail;
    AddMeanRows<kTail>(p.mean, weights + kFirst * kMeanWeights, scores + kFirst * kBlockSize);
  }
}

KVL_INLINE Vec CapScores(const RowCap& cap, Vec scores) {
  return Set1(cap.most) * Tanh(Fma(scores, Set1(cap.unit), Set1(cap.shift)));
}

// Caps the scores of one row against a block.
KVL_INLINE void CapRow(const RowCap& cap, float* scores) {
  for (int t = 0; t < kBlockSize; t += kLanes) Store(scores + t, CapScores(cap, Load(scores + t)));
}

// Turns the scores of one row into probabilities against its maximum, which may rise. Tokens
// outside [begin, end) of the block get probability 0, whatever their scores.
KVL_INLINE void TurnIntoProbabilities(int begin, int end, float log2_scale, RowState* row,
                                      float* sums, float* scores) {
  for (int t = 0; t < Min(begin, kBlockSize); ++t) scores[t] = kMinusInfinity;
  for (int t = Max(end, 0); t < kBlockSize; ++t) scores[t] = kMinusInfinity;
  Vec top = Load(scores);
  for (int t = kLanes; t < kBlockSize; t += kLanes) top = Larger(top, Load(scores + t));
  row->shrink = 1;
  Vec sum = Load(sums);
  if (AnyGreater(top, Set1(row->max))) {
    const float raised = MaxOfLanes(top);
    row->shrink = Exp2((row->max - raised) * log2_scale);
    row->max = raised;
    sum = sum * Set1(row->shrink);
  }
  // A row that saw nothing yet (all of these scores are -infinity too) has no maximum to subtract.
  const float max = row->max == kMinusInfinity ? 0 : row->max;
  const Vec scale = Set1(log2_scale), offset = Set1(-max * log2_scale);
  for (int t = 0; t < kBlockSize; t += kLanes) {
    const Vec prob = Exp2(Fma(Load(scores + t), scale, offset));
    sum = sum + prob;
    Store(scores + t, prob);
  }
  Store(sums, sum);
}

// Adds the values of a block to the rows of a tile, as ScoreRows scores them.
template <int kRows, typename Row>
void AddValues(const Panel& panel, const BlockView<Row>& block, bool is_first, int row, int n_valid,
               const float* probs) {
  using L = Lines<Row>;
  const int n_cols = panel.p->shape.rank_v / kLanes * L::kVecs;
  const bool fetches = is_first && block.next != nullptr;
  constexpr bool kMayBeOdd = kLanes == 16 && L::kVecs == 1;  // ranks are multiples of 16
  ForEachTile<TileCols<Row, kRows>(), kMayBeOdd>(n_cols, [&](auto cols, int col) {
    const int64_t offset = col * L::kVecElements;
    const Row* next =
        fetches ? block.next + (block.v - block.k) + offset * (kBlockSize / 2) : nullptr;
    ValueTile<Row, kRows, cols.value>(panel, block.v + offset, next, row, col / L::kVecs * kLanes,
                                      n_valid, probs);
  });
}

template <int kRows>
void ScoreRows(const Panel& panel, const CodeBlock& block, bool, int row, float* scores) {
  ScoreCodes<kRows>(block,
                    {.q = {panel.q + row * kQStride, kQStride},
                     .rounded = &panel.scratch->rounded,
                     .first = row,
                     .small_sums = panel.tiled.KeySums(row)},
                    scores);
}

template <int kRows>
void AddValues(const Panel& panel, const CodeBlock& block, bool, int row, int, const float* probs) {
  AddCodeValues<kRows>(block,
                       {probs, panel.RowOfO(row), panel.p->o_stride, &panel.scratch->rows[row]});
}

// How many of n_left rows the next tile takes. Those of numbers are as high as each other, because
// low ones use lines less often.
KVL_INLINE int RowsOfTile(const CodeBlock&, int n_left) { return Min(kCodeTileRows, n_left); }
template <typename Row>
KVL_INLINE int RowsOfTile(const BlockView<Row>&, int n_left) {
  const int n_tiles = (n_left + kTileRows - 1) / kTileRows;
  return (n_left + n_tiles - 1) / n_tiles;
}
template <typename Block>
constexpr int kMostRowsOf = std::is_same_v<Block, CodeBlock> ? kCodeTileRows : kTileRows;

// Gets the sides of a block ready for the rows of a panel, one after the other.
template <typename Row>
void ReadKeys(const BlockView<Row>&) {}
template <typename Row>
void ReadValues(const BlockView<Row>&) {}
KVL_LANES void ReadKeys(const CodeBlock& block) { ReadNumbers<true>(block); }
KVL_LANES void ReadValues(const CodeBlock& block) { ReadNumbers<false>(block); }

// Attends with all rows of the panel from first_row on to one block.
template <typename Block>
void AttendBlock(const Panel& panel, const Block& block, int first_row) {
  const AttendParams& p = *panel.p;
  Scratch* scratch = panel.scratch;
  ReadKeys(block);
  constexpr bool kMayTile = kMayHaveByteTiles && std::is_same_v<Block, CodeBlock>;
  if constexpr (kMayTile) {
    DotKeysInTiles(panel.tiled, block, scratch->rounded.small, first_row);
  }
  for (int row = first_row, n; row < panel.n_rows; row += n) {
    n = RowsOfTile(block, panel.n_rows - row);
    WithCount<kMostRowsOf<Block>>(n, [&](auto rows) {
      ScoreRows<rows.value>(panel, block, row == first_row, row, scratch->probs[row]);
      if (p.mean.n_pairs > 0) {
        AddMean<rows.value>(panel, block.first_entry / kBlockSize, row, scratch->probs[row]);
      }
    });
    for (int r = row; r < row + n; ++r) {
      if (p.score_cap > 0) CapRow(CapOfRow(p, panel.first_row + r), scratch->probs[r]);
      if (p.scores != nullptr) {
        __builtin_memcpy(
            p.scores + (panel.first_row + r) * p.scores_stride + block.first_entry - p.kv_begin,
            scratch->probs[r], sizeof(scratch->probs[r]));
      }
      TurnIntoProbabilities(BeginOfRow(p, panel.first_row + r) - block.first_entry,
                            LimitOfRow(p, panel.first_row + r) - block.first_entry,
                            panel.log2_scale, &scratch->rows[r], scratch->sums[r],
                            scratch->probs[r]);
    }
  }
  ReadValues(block);
  if constexpr (kMayTile) {
    const ValueRows<1> rows = {scratch->probs[0], panel.RowOfO(0), p.o_stride, scratch->rows};
    if (AddValuesInTiles(panel.tiled, block, rows, first_row)) return;
  }
  for (int row = first_row, n; row < panel.n_rows; row += n) {
    n = RowsOfTile(block, panel.n_rows - row);
    // What the tile's last row sees; the others have probability 0 there.
    const int limit = LimitOfRow(p, panel.first_row + row + n - 1);
    const int n_valid = Min(kBlockSize, limit - block.first_entry);
    WithCount<kMostRowsOf<Block>>(n, [&](auto rows) {
      AddValues<rows.value>(panel, block, row == first_row, row, n_valid, scratch->probs[row]);
    });
  }
}

// Finds and expands sealed blocks, which are asked for in ascending order.
struct SealedBlocks {
  const AttendParams* p;
  float* values;
  int run_idx = 0;
  const PackedRun* run = nullptr;
  PackedRunView view = {};

  // Whether `block` is sealed. If so, its run is found too.
  bool Find(int block) {
    if (p->packed == nullptr) return false;
    const PackedRun* found = FindRun(*p->packed, block, &run_idx);
    if (found != nullptr && found != run) view = ViewRun(*p, *found);
    run = found;
    return found != nullptr;
  }
  // Returns the values of the block that was found as an F32 block, until the next call.
  const float* Expand(int block) {
    ExpandSealedBlock(view, p->blocks[block], block - run->first_block, values);
    return values;
  }
};

KVL_INLINE void ClearRow(float* o, int rank_v) {
  for (int r = 0; r < rank_v; r += kLanes) Store(o + r, Zero());
}

// Attends to the sealed block at `entry`, which was found.
KVL_INLINE void AttendCodes(const Panel& panel, const SealedBlocks& sealed, const std::byte* next,
                            int entry, int first_row) {
  const AttendParams& p = *panel.p;
  Scratch* scratch = panel.scratch;
  const int block = entry / kBlockSize, idx = block - sealed.run->first_block;
  RoundQueries({panel.q, kQStride}, panel.n_rows, sealed.view.k, p.is_exact, &scratch->rounded);
  AttendBlock(panel,
              CodeBlock{.run = &sealed.view,
                        .bytes = p.blocks[block],
                        .numbers = scratch->numbers(),
                        .small = scratch->small(),
                        .is_exact = p.is_exact,
                        .next = next,
                        .block_idx = idx,
                        .is_last = idx + 1 == sealed.run->n_blocks,
                        .first_entry = entry},
              first_row);
}

template <typename Row>
void AttendPanel(const Panel& panel) {
  const AttendParams& p = *panel.p;
  Scratch* scratch = panel.scratch;
  for (int row = 0; row < panel.n_rows; ++row) {
    Store(scratch->sums[row], Zero());
    if (p.continues) {
      scratch->rows[row] = {p.row_max[panel.first_row + row] / p.sm_scale, 1};
      scratch->sums[row][0] = p.row_sum[panel.first_row + row];
    } else {
      scratch->rows[row] = {kMinusInfinity, 1};
      ClearRow(panel.RowOfO(row), p.shape.rank_v);
    }
  }
  SealedBlocks sealed = {.p = &p, .values = scratch->values};
  constexpr bool kReadsCodes = sizeof(Row) == 2;  // F32 rows want F32 sums
  const int64_t key_elements = int64_t{kBlockSize} * p.shape.rank_k;
  const int kv_end = LimitOfRow(p, panel.first_row + panel.n_rows - 1);
  ForgetQueries(&scratch->rounded);
  // The first that sees anything of the block, or one before it: a multiple of kCodeTileRows.
  int first_row = 0;
  for (int entry = FirstEntryToRead(p, panel.first_row); entry < kv_end; entry += kBlockSize) {
    while (LimitOfRow(p, panel.first_row + Min(first_row + kCodeTileRows, panel.n_rows) - 1) <=
           entry) {
      first_row += kCodeTileRows;
    }
    const int block = entry / kBlockSize;
    const std::byte* next = entry + kBlockSize < kv_end ? p.blocks[block + 1] : nullptr;
    if (!sealed.Find(block)) {
      const Row* k = reinterpret_cast<const Row*>(p.blocks[block]);
      AttendBlock(panel,
                  BlockView<Row>{k, k + key_elements, reinterpret_cast<const Row*>(next), entry},
                  first_row);
    } else if (kReadsCodes && CodeBlock::Reads(sealed.view)) {
      if constexpr (kReadsCodes) AttendCodes(panel, sealed, next, entry, first_row);
    } else {
      const float* k = sealed.Expand(block);
      AttendBlock(panel, BlockView<float>{k, k + key_elements, nullptr, entry}, first_row);
    }
  }
  for (int row = 0; row < panel.n_rows; ++row) {
    p.row_max[panel.first_row + row] = scratch->rows[row].max * p.sm_scale;
    p.row_sum[panel.first_row + row] = SumOfLanes(Load(scratch->sums[row]));
  }
}

// Copies the panel's rows of q to its scratch.
template <typename Row>
KVL_INLINE void PointToQ(const Row* q, Panel* panel) {
  for (int row = 0; row < panel->n_rows; ++row) {
    const Row* from = q + (panel->first_row + row) * panel->p->q_stride;
    float* to = panel->scratch->q + row * kQStride;
    for (int r = 0; r < panel->p->shape.rank_k; r += kLanes) {
      Store(to + r, Lines<Row>::Row(from + r));
    }
  }
  panel->q = panel->scratch->q;
}

// `tiles` may be null.
template <typename Row>
void AttendWith(const AttendParams& p, const ByteTiles* tiles, std::byte* scratch) {
  for (int row = 0; row < p.n_rows; row += kPanelRows) {
    Panel panel = {.p = &p,
                   .log2_scale = p.sm_scale * kLog2E,
                   .first_row = row,
                   .n_rows = Min(kPanelRows, p.n_rows - row),
                   .scratch = reinterpret_cast<Scratch*>(scratch)};
    panel.tiled = TiledRows::Of(tiles, panel.n_rows, &panel.scratch->tiles);
    PointToQ(static_cast<const Row*>(p.q), &panel);
    panel.tiled.Begin();
    AttendPanel<Row>(panel);
    panel.tiled.End();
  }
}

template <typename Row>
void Attend(const AttendParams& p, std::byte* scratch) {
  AttendWith<Row>(p, nullptr, scratch);
}

}  // namespace
}  // namespace kvlathe
