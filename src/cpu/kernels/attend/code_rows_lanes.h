// Attention over sealed blocks, over vectors of lanes.h. The codes of a block
// become numbers of 16 bits once for all rows, and are multiplied with weights of 16 bits in exact
// integer dots, twice as many at a time as products in F32. The scale and the minimum that all
// codes of a channel or of a token share go into the weights and the sums; factors and exact
// entries are added to the sums. Nothing that a row gets depends on the rows beside it.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/byte_dots_lanes.h"
#include "cpu/kernels/attend/code_block_lanes.h"
#include "cpu/kernels/attend/code_dots_lanes.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/attend/packed_lanes.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

constexpr int kMaxFactors = 8;  // so many are added at a time

constexpr float kLargestNumber = 255;

// Reads the scales of a block per channel or per token, and its minima, which are those of numbers
// in place of codes.
void ReadNumberScales(const PackedSideView& side, const std::byte* block, int block_idx,
                      ScaleTable* table) {
  int n_groups = side.n_groups, step = ScaleTable::kTokenStep, n = kBlockSize;
  if (side.is_per_channel) {
    ReadChannelScales(side, block_idx, table);
    n_groups = kBlockSize / Min(side.group, kBlockSize), step = n = side.rank;
  } else {
    ReadTokenScales<SideKind::kValue>(side, block, block_idx, table);
  }
  if (side.bits != 8 || side.is_symmetric) return;
  for (int group = 0; group < n_groups; ++group) {
    const float* scales = table->scales + group * step;
    float* minima = table->minima + group * step;
    for (int i = 0; i < n; i += kLanes) {
      Store(minima + i, Fma(Set1(128), Load(scales + i), Load(minima + i)));
    }
  }
}

// --- Scores: [kRows][kBlockSize], row r of q at r * q_stride. ---

// The weights of all rows of a panel, for blocks that scale none of their channels.
struct PanelWeights {
  CodeWeights<kMaxCodeRows> wide;
  SmallQueries small;
  bool has_wide;
  int small_channels[kMostByteBits + 1];  // that `small` was made for: by bits, or wide for 0
};

template <int kRows>
struct QueryRows {
  FloatRows q;
  const PanelWeights* rounded;  // of the panel
  int first;                    // of the panel's rows
  // Of small.bytes, kBlockSize apart from row to row, where tiles have found them; null otherwise.
  const int32_t* small_sums;
};

KVL_LANES void RoundWideQueries(const FloatRows& q, int n_rows, const PackedSideView& side,
                                CodeWeights<kMaxCodeRows>* to) {
  const bool has_units = side.n_segments > 0;
  for (int r = 0; r < n_rows; ++r) {
    CodeWeights<1> row;
    RoundWeights({q[r], 0}, side.rank, has_units ? kLargestUnitNumber : kLargestNumber, &row);
    __builtin_memcpy(to->numbers[r], row.numbers[0], sizeof(row.numbers[0]));
    to->units[r] = has_units ? kUnitNumberStep * row.units[0] : row.units[0];
  }
}

KVL_LANES void ForgetQueries(PanelWeights* weights) {
  weights->has_wide = false;
  weights->small_channels[0] = -1;
}

// Rounds the queries of a panel for the keys of a run, unless they are so already. All runs of a
// head have split bits, or none has.
KVL_LANES void RoundQueries(const FloatRows& q, int n_rows, const PackedSideView& side,
                            bool is_exact, PanelWeights* to) {
  if (!to->has_wide) {
    RoundWideQueries(q, n_rows, side, &to->wide);
    to->has_wide = true;
  }
  const int n_wide = WideChannelsOf(side);
  if (side.n_segments == 0 || is_exact || n_wide == side.n_coded) return;
  int channels[kMostByteBits + 1] = {n_wide};
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    if (segment.bits <= kMostByteBits) channels[segment.bits] = segment.n_channels;
  }
  if (__builtin_memcmp(channels, to->small_channels, sizeof(channels)) == 0) return;
  __builtin_memcpy(to->small_channels, channels, sizeof(channels));
  RoundSmallQueries(q, n_rows, side, n_wide, &to->small);
}

// Multiplies scores with the scales of their tokens.
template <int kRows>
KVL_LANES void ScaleScores(const PackedSideView& side, const std::byte* block, float* scores) {
  alignas(64) float scales[kBlockSize];
  ReadUnitScales(side, block, scales);
  for (int t = 0; t < kBlockSize; t += kLanes) {
    const Vec scale = Load(scales + t);
    Unroll<kRows>([&](auto r) KVL_PART {
      float* const score = scores + r.value * kBlockSize + t;
      Store(score, Load(score) * scale);
    });
  }
}

// Multiplies scores with the balance of their tokens.
template <int kRows>
KVL_LANES void BalanceScores(const PackedSideView& side, const std::byte* block, float* scores) {
  const F16* balance = reinterpret_cast<const F16*>(block + side.balance);
  for (int t = 0; t < kBlockSize; t += kLanes) {
    const Vec of_tokens = LoadF16(balance + t);
    Unroll<kRows>([&](auto r) KVL_PART {
      float* const score = scores + r.value * kBlockSize + t;
      Store(score, Load(score) * of_tokens);
    });
  }
}

// Stores the sums times units, plus constants, as scores of tokens from `token` on, or adds them.
template <int kRows, int kVecs>
KVL_INLINE void StoreScores(const DotSums<kRows, kVecs>& sums, int token, const float* units,
                            const float* constants, bool adds, float* scores) {
  Unroll<kRows>([&](auto r) KVL_PART {
    const Vec unit = Set1(units[r.value]), constant = Set1(constants[r.value]);
    Unroll<kVecs>([&](auto v) KVL_PART {
      float* score = scores + r.value * kBlockSize + token + kLanes * v.value;
      const Vec before = adds ? Load(score) + constant : constant;
      Store(score, Fma(ToFloats(sums.of[r.value][v.value]), unit, before));
    });
  });
}

// Does so with the sums that tiles have found. Apart, so that it takes no registers of the dots.
template <int kRows>
__attribute__((noinline)) void StoreTiledScores(const int32_t* sums, const float* units,
                                                const float* constants, bool adds, float* scores) {
  for (int token = 0; token < kBlockSize; token += kLanes) {
    StoreScores(LoadSums<kRows, 1>(sums + token, kBlockSize), token, units, constants, adds,
                scores);
  }
}

template <int kRows>
void ScoreSegments(const CodeBlock& block, const QueryRows<kRows>& rows, float* scores) {
  const PackedSideView& side = block.run->k;
  constexpr float kNoConstants[kRows] = {};
  const int n_wide = block.WideChannels(side), n_small = side.n_coded - n_wide;
  const CodeWeights<kMaxCodeRows>& wide = rows.rounded->wide;
  if (n_wide > 0 || n_small == 0) {
    DotTokens<kRows>(block.numbers, n_wide / 2, wide.numbers[rows.first], 0, kBlockSize,
                     [&](int token, const auto& sums) KVL_PART {
                       StoreScores(sums, token, wide.units + rows.first, kNoConstants, false,
                                   scores);
                     });
  }
  if (n_small > 0) {
    const SmallQueries& small = rows.rounded->small;
    const float *units = small.units + rows.first, *constants = small.constants + rows.first;
    if (kMayHaveByteTiles && rows.small_sums != nullptr) {
      StoreTiledScores<kRows>(rows.small_sums, units, constants, n_wide > 0, scores);
    } else {
      DotSmallTokens<kRows>(block.small, n_small, small.bytes[rows.first],
                            [&](int token, const auto& sums) KVL_PART {
                              StoreScores(sums, token, units, constants, n_wide > 0, scores);
                            });
    }
  }
  if (side.has_token_scales) ScaleScores<kRows>(side, block.bytes, scores);
}

// Computes scores where scales are per channel. The scales of a group of tokens go into the
// weights, and its minima become one sum.
template <int kRows>
void ScoreByChannel(const CodeBlock& block, const ScaleTable& table, const QueryRows<kRows>& rows,
                    float* scores) {
  const PackedSideView& side = block.run->k;
  const int n_tokens = Min(side.group, kBlockSize);
  for (int first = 0; first < kBlockSize; first += n_tokens) {
    const float* scales = table.scales + table.begin[first / 16];
    const float* minima = table.minima + table.begin[first / 16];
    CodeWeights<kRows> weights;
    float constants[kRows];
    ScaleAndRoundWeights(rows.q, side.rank, scales, minima, kLargestNumber, &weights, constants);
    DotTokens<kRows>(block.numbers, side.rank / 2, weights.numbers[0], first, first + n_tokens,
                     [&](int token, const auto& sums) KVL_PART {
                       StoreScores(sums, token, weights.units, constants, false, scores);
                     });
  }
}

template <int kRows>
void ScoreByToken(const CodeBlock& block, const ScaleTable& table, const QueryRows<kRows>& rows,
                  float* scores) {
  const PackedSideView& side = block.run->k;
  const int16_t* weights = rows.rounded->wide.numbers[rows.first];
  const float* units = rows.rounded->wide.units + rows.first;
  for (int i = 0; i < kRows * kBlockSize; i += kLanes) Store(scores + i, Zero());
  for (int first = 0; first < side.rank; first += side.group) {
    const int n = Min(side.group, side.rank - first);
    const float* scales = table.scales + table.begin[first / 16];
    const float* minima = table.minima + table.begin[first / 16];
    float totals[kRows];
    for (int r = 0; r < kRows; ++r) {
      Vec total = Zero();
      for (int i = first; i < first + n; i += kLanes) total = total + Load(rows.q[r] + i);
      totals[r] = SumOfLanes(total);
    }
    DotTokens<kRows>(block.numbers + first / 2 * kKeyPairWords, n / 2, weights + first, 0,
                     kBlockSize, [&](int token, const auto& sums) KVL_PART {
                       constexpr int kVecs = sizeof(sums.of[0]) / sizeof(IntVec);
                       Unroll<kRows>([&](auto r) KVL_PART {
                         Unroll<kVecs>([&](auto v) KVL_PART {
                           const int t = token + kLanes * v.value;
                           float* score = scores + r.value * kBlockSize + t;
                           const Vec sum =
                               Fma(ToFloats(sums.of[r.value][v.value]) * Set1(units[r.value]),
                                   Load(scales + t), Load(score));
                           Store(score, Fma(Set1(totals[r.value]), Load(minima + t), sum));
                         });
                       });
                     });
  }
}

// Adds the sum over f of weights[f][r] * factors[f][i] to to[r, i].
template <int kRows>
KVL_LANES void AddFactorSums(int lowrank, const float (&weights)[kMaxFactors][kRows],
                             const F16* factors, int n, float* to, int64_t stride) {
  for (int i = 0; i < n; i += kLanes) {
    Vec sums[kRows];
    Unroll<kRows>([&](auto r) KVL_PART { sums[r.value] = Load(to + r.value * stride + i); });
    for (int f = 0; f < lowrank; ++f) {
      const Vec factor = LoadF16(factors + f * n + i);
      Unroll<kRows>([&](auto r) KVL_PART {
        sums[r.value] = Fma(Set1(weights[f][r.value]), factor, sums[r.value]);
      });
    }
    Unroll<kRows>([&](auto r) KVL_PART { Store(to + r.value * stride + i, sums[r.value]); });
  }
}

// Sets weights[f][r] to the dot of row r and factor f.
template <int kRows>
KVL_LANES void DotFactors(int lowrank, const F16* factors, int n, const float* rows, int64_t stride,
                          float (&weights)[kMaxFactors][kRows]) {
  for (int f = 0; f < lowrank; ++f) {
    Vec dots[kRows] = {};
    for (int i = 0; i < n; i += kLanes) {
      const Vec factor = LoadF16(factors + f * n + i);
      Unroll<kRows>([&](auto r) KVL_PART {
        dots[r.value] = Fma(Load(rows + r.value * stride + i), factor, dots[r.value]);
      });
    }
    Unroll<kRows>([&](auto r) KVL_PART { weights[f][r.value] = SumOfLanes(dots[r.value]); });
  }
}

template <int kRows>
void AddLowRankScores(const CodeBlock& block, const QueryRows<kRows>& rows, float* scores) {
  const PackedSideView& side = block.run->k;
  const F16* factor = reinterpret_cast<const F16*>(block.bytes + side.factor);
  for (int first = 0; first < block.run->lowrank; first += kMaxFactors) {
    const int n = Min(kMaxFactors, block.run->lowrank - first);
    float weights[kMaxFactors][kRows];
    DotFactors<kRows>(n, side.basis + first * side.rank, side.rank, rows.q.first, rows.q.stride,
                      weights);
    AddFactorSums<kRows>(n, weights, factor + first * kBlockSize, kBlockSize, scores, kBlockSize);
  }
}

// --- Exact entries: their differences from the values of the codes, for four rows at a time, which
// lie beside each other meanwhile. ---

using RowTile = float[4];

KVL_LANES void WidenBf16(const uint16_t* from, int n, float* to) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, LoadBf16(from + i));
  for (; i < n; ++i) {
    const uint32_t bits = uint32_t{from[i]} << 16;
    __builtin_memcpy(to + i, &bits, sizeof(bits));
  }
}

template <int kRows>
KVL_LANES void GatherRows(const float* rows, int64_t stride, int n, RowTile* to) {
  for (int i = 0; i < n; i += 4) {
    __m128 x[4] = {};
    Unroll<kRows>([&](auto r) KVL_PART { x[r.value] = _mm_loadu_ps(rows + r.value * stride + i); });
    _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
    Unroll<4>([&](auto j) KVL_PART { _mm_store_ps(to[i + j.value], x[j.value]); });
  }
}

// The sums of four rows for every token or channel, in two parts.
struct TileSums {
  alignas(64) RowTile parts[2][kMaxPackedRank];

  KVL_LANES void Clear(int n) {
    for (int i = 0; i < n; ++i) {
      _mm_store_ps(parts[0][i], _mm_setzero_ps());
      _mm_store_ps(parts[1][i], _mm_setzero_ps());
    }
  }
};

template <int kRows>
KVL_LANES void AddToRows(const TileSums& from, int n, float* rows, int64_t stride) {
  for (int i = 0; i < n; i += 4) {
    __m128 x[4];
    Unroll<4>([&](auto j) KVL_PART {
      x[j.value] = _mm_add_ps(_mm_load_ps(from.parts[0][i + j.value]),
                              _mm_load_ps(from.parts[1][i + j.value]));
    });
    _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
    Unroll<kRows>([&](auto r) KVL_PART {
      float* row = rows + r.value * stride + i;
      _mm_storeu_ps(row, _mm_add_ps(_mm_loadu_ps(row), x[r.value]));
    });
  }
}

// Adds, for each entry, its difference times from[its token or channel] to the sums of its channel
// or token. Neighbouring entries are often of one lane; they go to different parts so that neither
// waits for the other.
template <bool kIsKey>
void AddDifferences(const CodeBlock& block, const PackedSideView& side, const RowTile* from,
                    TileSums* to) {
  const ExactEntries entries = ExactEntriesOf(side, block.block_idx);
  ExactLanes lanes;
  ListLanes(CountsOf<kIsKey>(side, block.bytes), &lanes);
  constexpr int kChunk = 256;
  for (int begin = 0; begin < lanes.n; begin += kChunk) {
    const int n = Min(kChunk, lanes.n - begin);
    alignas(64) float differences[kChunk];
    WidenBf16(entries.differences + begin, n, differences);
    const auto add = [&](int i, RowTile* part) KVL_PART {
      float* sums = part[lanes.lanes[begin + i]];
      const float* weights = from[entries.places[begin + i]];
      _mm_store_ps(sums, _mm_fmadd_ps(_mm_broadcast_ss(differences + i), _mm_load_ps(weights),
                                      _mm_load_ps(sums)));
    };
    for (int i = 0; i + 1 < n; i += 2) {
      add(i, to->parts[0]);
      add(i + 1, to->parts[1]);
    }
    if (n % 2 == 1) add(n - 1, to->parts[0]);
  }
}

template <int kRows>
void AddExactScores(const CodeBlock& block, const QueryRows<kRows>& rows, float* scores) {
  const PackedSideView& side = block.run->k;
  if (side.exact.ends == nullptr) return;
  alignas(16) RowTile q[kMaxPackedRank];
  TileSums sums;
  sums.Clear(kBlockSize);
  GatherRows<kRows>(rows.q.first, rows.q.stride, side.rank, q);
  AddDifferences<true>(block, side, q, &sums);
  AddToRows<kRows>(sums, kBlockSize, scores, kBlockSize);
}

// `block.numbers` are those of K.
template <int kRows>
void ScoreCodes(const CodeBlock& block, const QueryRows<kRows>& rows, float* scores) {
  const PackedSideView& side = block.run->k;
  if (side.n_segments > 0) {
    ScoreSegments(block, rows, scores);
  } else {
    ScaleTable table;
    ReadNumberScales(side, block.bytes, block.block_idx, &table);
    if (side.is_per_channel) {
      ScoreByChannel(block, table, rows, scores);
      if (side.balanced_tokens > 0) BalanceScores<kRows>(side, block.bytes, scores);
    } else {
      ScoreByToken(block, table, rows, scores);
    }
    AddExactScores(block, rows, scores);
  }
  AddLowRankScores(block, rows, scores);
}

// --- Values: rows of probabilities [kRows][kBlockSize], sums o_stride apart. ---

template <int kRows>
struct ValueRows {
  const float* probs;
  float* o;
  int64_t o_stride;
  const RowState* states;
};

// Sets o[r, channels from `channel` on] to shrink * o + sums * unit + constant.
template <int kRows, int kVecs>
KVL_INLINE void StoreValues(const ValueRows<kRows>& rows, const DotSums<kRows, kVecs>& sums,
                            int channel, const float* units, const float* constants) {
  Unroll<kRows>([&](auto r) KVL_PART {
    Unroll<kVecs>([&](auto v) KVL_PART {
      float* o = rows.o + r.value * rows.o_stride + channel + kLanes * v.value;
      const Vec sum =
          Fma(ToFloats(sums.of[r.value][v.value]), Set1(units[r.value]), Set1(constants[r.value]));
      Store(o, Fma(Set1(rows.states[r.value].shrink), Load(o), sum));
    });
  });
}

// Sets o[r, channels from `channel` on] to shrink * o + (sums * unit + constant) * balance.
template <int kRows, int kVecs>
KVL_INLINE void StoreBalancedValues(const ValueRows<kRows>& rows, const DotSums<kRows, kVecs>& sums,
                                    int channel, const float* units, const float* constants,
                                    const F16* balance) {
  Unroll<kVecs>([&](auto v) KVL_PART {
    const int at = channel + kLanes * v.value;
    const Vec of_channels = LoadF16(balance + at);
    Unroll<kRows>([&](auto r) KVL_PART {
      float* o = rows.o + r.value * rows.o_stride + at;
      const Vec sum =
          Fma(ToFloats(sums.of[r.value][v.value]), Set1(units[r.value]), Set1(constants[r.value]));
      Store(o, Fma(sum, of_channels, Set1(rows.states[r.value].shrink) * Load(o)));
    });
  });
}

// Adds the values of channels [begin, end).
template <int kRows>
KVL_INLINE void AddChannels(const CodeBlock& block, int begin, int end,
                            const CodeWeights<kRows>& weights, const float* constants,
                            const ValueRows<kRows>& rows) {
  DotChannels<kRows>(block.value_numbers(), weights.numbers[0], begin, end,
                     [&](int channel, const auto& sums)
                         KVL_PART { StoreValues(rows, sums, channel, weights.units, constants); });
}

// Multiplies probabilities with the scales of their tokens.
template <int kRows>
KVL_INLINE void ScaleProbs(const CodeBlock& block, const float* probs,
                           float (&scaled)[kRows][kBlockSize], WeightSizes<kRows>* sizes) {
  const PackedSideView& side = block.run->v;
  alignas(64) float scales[kBlockSize];
  if (side.has_token_scales) ReadUnitScales(side, block.bytes, scales);
  for (int t = 0; t < kBlockSize; t += kLanes) {
    const Vec scale = side.has_token_scales ? Load(scales + t) : Set1(1);
    Unroll<kRows>([&](auto r) KVL_PART {
      const Vec weight = Load(probs + r.value * kBlockSize + t) * scale;
      Store(scaled[r.value] + t, weight);
      sizes->Add(r.value, weight);
    });
  }
}

// Adds the values of wide channels where bits are split, and makes weights of the others, rows of
// `small` from `first` on.
template <int kRows, int kMost>
KVL_INLINE void AddWideValues(const CodeBlock& block, const ValueRows<kRows>& rows,
                              const ValueRange (&ranges)[kValueOrders], int first,
                              SmallProbs<kMost>* small) {
  const PackedSideView& side = block.run->v;
  const int n_wide = block.WideChannels(side);
  constexpr float kNoConstants[kRows] = {};
  alignas(64) float scaled[kRows][kBlockSize];
  WeightSizes<kRows> sizes;
  ScaleProbs(block, rows.probs, scaled, &sizes);
  const FloatRows probs = {scaled[0], kBlockSize};
  if (n_wide > 0) {
    CodeWeights<kRows> weights;
    RoundInSteps(probs, kBlockSize, sizes, kLargestUnitNumber, &weights);
    for (float& unit : weights.units) unit *= kUnitNumberStep;
    AddChannels(block, 0, n_wide, weights, kNoConstants, rows);
  }
  if (n_wide < side.n_coded) {
    RoundSmallProbs(probs, sizes, ranges, !block.run->has_one_side, first, small);
  }
}

// Channels without codes are zero where bits are split.
template <int kRows>
KVL_INLINE void ShrinkUncoded(const CodeBlock& block, const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  for (int channel = side.n_coded; channel < side.rank; channel += kLanes) {
    Unroll<kRows>([&](auto r) KVL_PART {
      float* o = rows.o + r.value * rows.o_stride + channel;
      Store(o, Set1(rows.states[r.value].shrink) * Load(o));
    });
  }
}

template <int kRows>
void AddValueSegments(const CodeBlock& block, const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  const int n_wide = block.WideChannels(side);
  constexpr float kNoConstants[kRows] = {};
  ValueRange ranges[kValueOrders] = {};
  FindValueRanges(side, n_wide, ranges);
  SmallProbs<kRows> weights;
  AddWideValues(block, rows, ranges, 0, &weights);
  if (n_wide < side.n_coded) {
    for (int order = 0; order < kValueOrders; ++order) {
      const ValueRange& range = ranges[order];
      float units[kRows];
      Unroll<kRows>([&](auto r) KVL_PART { units[r.value] = weights.units[r.value] * range.step; });
      DotSmallChannels<kRows>(block.value_small() + (range.first - n_wide) / 16 * kColumnBytes,
                              weights.of[order][0], 0, range.n_channels,
                              [&](int channel, const auto& sums) KVL_PART {
                                StoreValues(rows, sums, range.first + channel, units, kNoConstants);
                              });
    }
  }
  ShrinkUncoded(block, rows);
}

template <int kRows>
void AddScaledValues(const CodeBlock& block, const ScaleTable& table,
                     const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  for (int first = 0; first < side.rank; first += side.group) {
    const float* scales = table.scales + table.begin[first / 16];
    const float* minima = table.minima + table.begin[first / 16];
    CodeWeights<kRows> weights;
    float constants[kRows];
    ScaleAndRoundWeights({rows.probs, kBlockSize}, kBlockSize, scales, minima, kLargestNumber,
                         &weights, constants);
    const int end = Min(first + side.group, side.rank);
    if (side.balanced_tokens == 0) {
      AddChannels(block, first, end, weights, constants, rows);
      continue;
    }
    const F16* balance = side.ChannelBalance(block.block_idx);
    DotChannels<kRows>(block.value_numbers(), weights.numbers[0], first, end,
                       [&](int channel, const auto& sums) KVL_PART {
                         StoreBalancedValues(rows, sums, channel, weights.units, constants,
                                             balance);
                       });
  }
}

template <int kRows>
void AddLowRankValues(const CodeBlock& block, const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  const F16* factor = reinterpret_cast<const F16*>(block.bytes + side.factor);
  for (int first = 0; first < block.run->lowrank; first += kMaxFactors) {
    const int n = Min(kMaxFactors, block.run->lowrank - first);
    float weights[kMaxFactors][kRows];
    DotFactors<kRows>(n, factor + first * kBlockSize, kBlockSize, rows.probs, kBlockSize, weights);
    AddFactorSums<kRows>(n, weights, side.basis + first * side.rank, side.rank, rows.o,
                         rows.o_stride);
  }
}

template <int kRows>
void AddExactValues(const CodeBlock& block, const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  if (side.exact.ends == nullptr) return;
  alignas(16) RowTile probs[kBlockSize];
  TileSums sums;
  sums.Clear(side.rank);
  GatherRows<kRows>(rows.probs, kBlockSize, kBlockSize, probs);
  AddDifferences<false>(block, side, probs, &sums);
  AddToRows<kRows>(sums, side.rank, rows.o, rows.o_stride);
}

// `block.numbers` are those of V.
template <int kRows>
void AddCodeValues(const CodeBlock& block, const ValueRows<kRows>& rows) {
  const PackedSideView& side = block.run->v;
  if (side.n_segments > 0) {
    AddValueSegments(block, rows);
  } else {
    ScaleTable table;
    ReadNumberScales(side, block.bytes, block.block_idx, &table);
    AddScaledValues(block, table, rows);
    AddExactValues(block, rows);
  }
  AddLowRankValues(block, rows);
}

}  // namespace
}  // namespace kvlathe
