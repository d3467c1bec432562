// Computes the scores of a tile of rows with a sealed block (attend_packed_avx512.cc), and their
// probabilities. Only files compiled with AVX-512 flags may include this, and everything has
// internal linkage.
#pragma once

#include "cpu/kernels/attend/avx512/packed_exact_avx512.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

KVL_INLINE const uint16_t* QueryOfRow(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  return static_cast<const uint16_t*>(p.q) + (w.panel->first_row + row) * p.q_stride;
}

// Lane j of number i becomes lane i of number j. Lanes are 128 bits.
KVL_INLINE void SwapLanes(__m512 (&x)[kTileRows]) {
  const __m512 a = _mm512_shuffle_f32x4(x[0], x[1], 0x44);
  const __m512 b = _mm512_shuffle_f32x4(x[2], x[3], 0x44);
  const __m512 c = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
  const __m512 d = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_f32x4(a, b, 0x88);
  x[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
  x[2] = _mm512_shuffle_f32x4(c, d, 0x88);
  x[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
}

// Stores the sums of the lanes of four vectors.
KVL_INLINE void StoreSumsOfLanes(__m512 (&x)[kTileRows], float* to) {
  SwapLanes(x);
  __m512 sums = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4e));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xb1));
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
}

// Multiplies q of a tile's rows with each group of scales per channel, and computes its dots with
// the middles. Rows that do not exist repeat the last one.
template <int kTokenGroups>
KVL_FLATTEN void ScaleTileQueries(const Work& w, int row) {
  const uint16_t* q[kTileRows];
  for (int i = 0; i < kTileRows; ++i) q[i] = QueryOfRow(w, Min(row + i, w.panel->n_rows - 1));
  const int slot = kTokenGroups == 1 ? row : 0;
  __m512 sums[kTokenGroups][kTileRows];
  Unroll<kTokenGroups>([&](auto g) KVL_PART {
    Unroll<kTileRows>([&](auto i) KVL_PART { sums[g.value][i.value] = _mm512_setzero_ps(); });
  });
  for (int r = 0; r < w.run.k.rank; r += kLanes) {
    __m512 x[kTileRows];
    Unroll<kTileRows>([&](auto i) KVL_PART { x[i.value] = LoadBf16(q[i.value] + r); });
    Unroll<kTokenGroups>([&](auto g) KVL_PART {
      const float* scales = w.s->key_scales + g.value * 2 * kMaxPackedRank + r;
      const __m512 scale = _mm512_load_ps(scales), middle = _mm512_load_ps(scales + kMaxPackedRank);
      Unroll<kTileRows>([&](auto i) KVL_PART {
        __m512& sum = sums[g.value][i.value];
        sum = _mm512_fmadd_ps(x[i.value], middle, sum);
        const __m256bh scaled = _mm512_cvtneps_pbh(_mm512_mul_ps(x[i.value], scale));
        _mm256_store_si256(
            reinterpret_cast<__m256i*>(w.s->q[slot + g.value * kTileRows + i.value] + r),
            reinterpret_cast<__m256i>(scaled));
      });
    });
  }
  Unroll<kTokenGroups>([&](auto g) KVL_PART {
    float dots[kTileRows];
    StoreSumsOfLanes(sums[g.value], dots);
    for (int i = 0; i < kTileRows; ++i) w.s->q_minima[slot + i][g.value] = dots[i];
  });
}

// Converts the scales per channel of this block where they are not those of the block before.
// Where one group spans the block, q of all rows is multiplied with them too.
void PrepareChannelScales(const Work& w, bool is_new_run) {
  const PackedSideView& side = w.run.k;
  const int first_token = w.block_idx * kBlockSize;
  if (!is_new_run && first_token % side.group != 0 && w.token_groups == 1) return;
  for (int i = 0; i < w.token_groups; ++i) {
    const int group = first_token / side.group + i;
    ConvertChannelScales(side, side.shared_scales + int64_t{2} * group * side.rank,
                         w.s->key_scales + i * 2 * kMaxPackedRank);
  }
  if (w.token_groups > 1) return;
  for (int row = w.first_row; row < w.panel->n_rows; row += kTileRows) ScaleTileQueries<1>(w, row);
}

// The unit of channel numbers of split bits, from which codes of 8 bits are decoded.
constexpr float kByteUnit = kUnitStep / CodeUnit(8);
KVL_INLINE int ByteChannels(const PackedSideView& side) {
  return side.segments[0].bits == 8 ? side.segments[0].n_channels : 0;
}

// Where bits are split, reads the scales of the block's tokens: of K as they are, of V in the two
// units of its numbers (FillUnits).
void PrepareUnitScales(const Work& w) {
  for (int t = 0; t < kBlockSize; t += kLanes) {
    const __m512 of_v = LoadUnitScales(w.block + w.run.v.scales + t);
    _mm512_store_ps(w.s->key_scales + t, LoadUnitScales(w.block + w.run.k.scales + t));
    _mm512_store_ps(w.s->value_scales + t, of_v);
    _mm512_store_ps(w.s->value_scales + 2 * kBlockSize + t,
                    _mm512_mul_ps(of_v, _mm512_set1_ps(kByteUnit)));
  }
}

// The groups of lines of K of some pairs of dimensions. With each pair a line of `fetches` is
// fetched.
struct KeyLines {
  const std::byte* codes;
  const std::byte* next;
  int n_pairs;
  FetchList* fetches;
};

// q by row, and by group of tokens where the groups scale it.
struct QueryRows {
  const uint16_t* q;
  int64_t row_step;
  int64_t group_step;
};

// Adds the dots of kRows queries with all 64 tokens.
template <int kBits, int kRows, int kTokenGroups>
KVL_INLINE void AddKeyDots(KeyLines keys, const QueryRows& queries, const CodeTables& tables,
                           __m512 (&dots)[kRows][kBlockLines]) {
  using Group = CodeGroup<kBits>;
  // A step takes whole groups and whole pairs.
  constexpr int kPairs = Max(1, Group::kLines / kBlockLines);
  constexpr int kGroups = kPairs * kBlockLines / Group::kLines;
  const uint16_t* q = queries.q;
  FetchList& fetches = *keys.fetches;
  const std::byte* const* fetch = fetches.lines + fetches.next;
  const std::byte* const* const fetches_end = fetches.lines + fetches.n;
  for (int pair = 0; pair < keys.n_pairs; pair += kPairs) {
    Unroll<kPairs>([&](auto step) KVL_PART {
      if (fetch != fetches_end) PrefetchLine(*fetch++);
      __m512bh lines[kBlockLines];
      Unroll<kBlockLines>([&](auto j) KVL_PART {
        constexpr int kLine = step.value * kBlockLines + j.value;
        const Group group(keys.codes + kLine / Group::kLines * Group::kBytes);
        lines[j.value] = group.template Line<kLine % Group::kLines>(tables);
      });
      Unroll<kRows>([&](auto i) KVL_PART {
        Unroll<kTokenGroups>([&](auto g) KVL_PART {
          constexpr int kGroupLines = kBlockLines / kTokenGroups;
          const __m512bh q_pair = BroadcastPair(q + i.value * queries.row_step +
                                                g.value * queries.group_step + 2 * step.value);
          Unroll<kGroupLines>([&](auto j) KVL_PART {
            constexpr int kLine = g.value * kGroupLines + j.value;
            dots[i.value][kLine] = _mm512_dpbf16_ps(dots[i.value][kLine], lines[kLine], q_pair);
          });
        });
      });
    });
    Unroll<kGroups>([&](auto g)
                        KVL_PART { PrefetchGroup<kBits>(keys.next + g.value * Group::kBytes); });
    keys.codes += kGroups * Group::kBytes;
    keys.next += kGroups * Group::kBytes;
    q += 2 * kPairs;
  }
  fetches.next = static_cast<int>(fetch - fetches.lines);
}

// The lines of the pairs of dimensions [first_pair, first_pair + n_pairs) of K.
template <int kBits>
KVL_INLINE KeyLines KeyLinesOf(const Work& w, int first_pair, int n_pairs) {
  const int64_t offset =
      int64_t{first_pair} * kBlockLines / CodeGroup<kBits>::kLines * CodeGroup<kBits>::kBytes;
  if constexpr (kBits == kDecodedBits) {
    const std::byte* lines = reinterpret_cast<const std::byte*>(w.s->lines) + offset;
    return {lines, lines, n_pairs, &w.s->fetches};
  }
  return {w.block + w.run.k.codes + offset, w.next + w.run.k.codes + offset, n_pairs,
          &w.s->fetches};
}

// Adds exact entries to the scores of rows [row, row + kRows). It comes last, so that nothing else
// has to wait for it.
template <int kRows>
KVL_INLINE void AddWaitingScores(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  if (!w.has_exact_sums(w.run.k)) return;
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    Unroll<kRows>([&](auto i) KVL_PART {
      scores[i.value][j.value] =
          _mm512_add_ps(scores[i.value][j.value],
                        _mm512_load_ps(w.s->exact_scores[row + i.value] + kLanes * j.value));
    });
  });
}

// Adds the low-rank residual.
template <int kRows>
KVL_INLINE void AddKeyRepairs(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  for (int f = 0; f < w.run.lowrank; ++f) {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      const __m512 factor = _mm512_load_ps(w.s->key_factor[f] + kLanes * j.value);
      Unroll<kRows>([&](auto i) KVL_PART {
        scores[i.value][j.value] =
            _mm512_fmadd_ps(_mm512_set1_ps(w.s->q_basis[w.FactorOf(row + i.value, f)]), factor,
                            scores[i.value][j.value]);
      });
    });
  }
}

// Multiplies scores with the balance of their tokens. There are no repairs then.
template <int kRows>
KVL_INLINE void BalanceScores(const Work& w, __m512 (&scores)[kRows][kBlockLines]) {
  const F16* balance = reinterpret_cast<const F16*>(w.block + w.run.k.balance);
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    const __m512 of_tokens = LoadHalf(balance + kLanes * j.value);
    Unroll<kRows>([&](auto i) KVL_PART {
      scores[i.value][j.value] = _mm512_mul_ps(scores[i.value][j.value], of_tokens);
    });
  });
}

template <int kBits, int kRows, int kTokenGroups>
KVL_INLINE void ScoreByChannel(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  const int slot = kTokenGroups == 1 ? row : 0;
  if constexpr (kTokenGroups > 1) ScaleTileQueries<kTokenGroups>(w, row);
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      scores[i.value][j.value] =
          _mm512_set1_ps(w.s->q_minima[slot + i.value][j.value * kTokenGroups / kBlockLines]);
    });
  });
  AddKeyRepairs<kRows>(w, row, scores);
  const PackedSideView& side = w.run.k;
  AddKeyDots<kBits, kRows, kTokenGroups>(KeyLinesOf<kBits>(w, 0, side.rank / 2),
                                         {w.s->q[slot], kMaxRank, kTileRows * kMaxRank},
                                         SideTables<kBits>(side), scores);
  if (side.balanced_tokens > 0) BalanceScores<kRows>(w, scores);
  AddWaitingScores<kRows>(w, row, scores);
}

// Scores wait in memory while the dots of a group of channels take the registers.
template <int kBits, int kRows>
KVL_INLINE void ScoreByToken(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  const PackedSideView& side = w.run.k;
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART { scores[i.value][j.value] = _mm512_setzero_ps(); });
  });
  AddKeyRepairs<kRows>(w, row, scores);
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      _mm512_store_ps(w.s->probs[row + i.value] + kLanes * j.value, scores[i.value][j.value]);
    });
  });
  const CodeTables tables = SideTables<kBits>(side);
  for (int group = 0; group < side.n_groups; ++group) {
    const int begin = group * side.group, end = Min(side.rank, begin + side.group);
    __m512 dots[kRows][kBlockLines];
    Unroll<kRows>([&](auto i) KVL_PART {
      Unroll<kBlockLines>([&](auto j) KVL_PART { dots[i.value][j.value] = _mm512_setzero_ps(); });
    });
    AddKeyDots<kBits, kRows, 1>(KeyLinesOf<kBits>(w, begin / 2, (end - begin) / 2),
                                {QueryOfRow(w, row) + begin, w.panel->p->q_stride, 0}, tables,
                                dots);
    const float* scales = w.s->key_scales + group * 2 * kBlockSize;
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      const __m512 scale = _mm512_load_ps(scales + kLanes * j.value);
      const __m512 middle = _mm512_load_ps(scales + kBlockSize + kLanes * j.value);
      Unroll<kRows>([&](auto i) KVL_PART {
        float* sum = w.s->probs[row + i.value] + kLanes * j.value;
        const __m512 q_sum = _mm512_set1_ps(w.s->q_sums[row + i.value][group]);
        const __m512 with_middle = _mm512_fmadd_ps(middle, q_sum, _mm512_load_ps(sum));
        _mm512_store_ps(sum, _mm512_fmadd_ps(dots[i.value][j.value], scale, with_middle));
      });
    });
  }
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      scores[i.value][j.value] = _mm512_load_ps(w.s->probs[row + i.value] + kLanes * j.value);
    });
  });
  AddWaitingScores<kRows>(w, row, scores);
}

// Adds the dots with the channels of a segment.
template <int kBits, int kRows>
KVL_INLINE void AddSegmentScores(const Work& w, int row, const CodeSegment& segment,
                                 __m512 (&scores)[kRows][kBlockLines]) {
  const std::byte* codes = w.block + segment.codes;
  const std::byte* next = w.next + segment.codes;
  if constexpr (kBits == kDecodedBits) {
    codes = next = reinterpret_cast<const std::byte*>(w.s->lines + kBlockSize * segment.first);
  }
  AddKeyDots<kBits, kRows, 1>({codes, next, segment.n_channels / 2, &w.s->fetches},
                              {w.s->q[row] + segment.first, kMaxRank, 0},
                              LoadCodeTables<kBits>(segment.table), scores);
}

// Multiplies scores with the scales of their tokens, and adds the residual.
template <int kRows>
KVL_INLINE void ScaleTokenScores(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    const __m512 scale = _mm512_load_ps(w.s->key_scales + kLanes * j.value);
    Unroll<kRows>([&](auto i) KVL_PART {
      scores[i.value][j.value] = _mm512_mul_ps(scores[i.value][j.value], scale);
    });
  });
  AddKeyRepairs<kRows>(w, row, scores);
}

template <int kRows>
KVL_INLINE void ScoreBySegment(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  const PackedSideView& side = w.run.k;
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      scores[i.value][j.value] = _mm512_set1_ps(w.s->q_minima[row + i.value][0]);
    });
  });
  if (!side.has_token_scales) AddKeyRepairs<kRows>(w, row, scores);
  if (w.is_decoded) {
    AddSegmentScores<kDecodedBits, kRows>(w, row, {kDecodedBits, 0, side.n_coded, 0}, scores);
  } else {
    for (int i = 0; i < side.n_segments; ++i) {
      WithSegmentBits(side.segments[i].bits, [&](auto bits) KVL_PART {
        AddSegmentScores<bits.value, kRows>(w, row, side.segments[i], scores);
      });
    }
  }
  if (side.has_token_scales) ScaleTokenScores<kRows>(w, row, scores);
}

// Stores probabilities in F32, because they are multiplied with scales and middles before they are
// rounded.
KVL_INLINE void StoreProbabilities(const __m512 (&scores)[kBlockLines], float log2_scale,
                                   const RowState& row, float* sums, float* probs) {
  const __m512 scale = _mm512_set1_ps(log2_scale);
  const float max = row.max == kMinusInfinity ? 0 : row.max;
  const __m512 offset = _mm512_set1_ps(-max * log2_scale);
  __m512 sum = _mm512_loadu_ps(sums);
  Unroll<kBlockLines>([&](auto j) KVL_PART {
    const __m512 p = Exp2(_mm512_fmadd_ps(scores[j.value], scale, offset));
    sum = _mm512_add_ps(sum, p);
    _mm512_store_ps(probs + kLanes * j.value, p);
  });
  _mm512_storeu_ps(sums, sum);
}

template <int kBits, int kRows>
KVL_FLATTEN void ScoreTile(const Work& w, int row) {
  __m512 scores[kRows][kBlockLines];
  if constexpr (kBits == kSplit) {
    ScoreBySegment<kRows>(w, row, scores);
  } else if (!w.run.k.is_per_channel) {
    ScoreByToken<kBits, kRows>(w, row, scores);
  } else if (w.token_groups == 1) {
    ScoreByChannel<kBits, kRows, 1>(w, row, scores);
  } else if (w.token_groups == 2) {
    ScoreByChannel<kBits, kRows, 2>(w, row, scores);
  } else {
    ScoreByChannel<kBits, kRows, 4>(w, row, scores);
  }
  const PackedPanel& panel = *w.panel;
  const AttendParams& p = *panel.p;
  const int first = panel.first_row + row;
  const bool is_masked = LimitOfRow(p, first) < w.first_entry + kBlockSize;
  const bool is_windowed = BeginOfRow(p, first + kRows - 1) > w.first_entry;
  Unroll<kRows>([&](auto i) KVL_PART {
    if (p.score_cap > 0) CapScores(CapOfRow(p, first + i.value), scores[i.value]);
    if (is_masked) MaskScores(LimitOfRow(p, first + i.value) - w.first_entry, scores[i.value]);
    if (is_windowed) {
      MaskFirstScores(BeginOfRow(p, first + i.value) - w.first_entry, scores[i.value]);
    }
    if (p.scores != nullptr) {
      float* to = p.scores + (first + i.value) * p.scores_stride + w.first_entry - p.kv_begin;
      Unroll<kBlockLines>([&](auto j) KVL_PART {
        _mm512_storeu_ps(to + kLanes * j.value, scores[i.value][j.value]);
      });
    }
    RowState* state = &panel.rows[row + i.value];
    float* sums = panel.sums[row + i.value];
    RaiseRowMax(MaxOfLines(scores[i.value]), panel.log2_scale, state, sums);
    StoreProbabilities(scores[i.value], panel.log2_scale, *state, sums, w.s->probs[row + i.value]);
  });
}

}  // namespace
}  // namespace kvlathe
