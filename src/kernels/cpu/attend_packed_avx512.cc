// Attention that reads sealed blocks with AVX-512 BF16 dots. Codes are small integers, which Bf16
// holds exactly, so dots take them as they are, and what belongs to a scale group is applied
// outside:
//   K  scales per channel multiply q once per group of tokens; scales per token multiply the dots
//      of their group of channels. Minima add the dot of q and minima, or minima times the sum of
//      q.
//   V  scales multiply the probabilities, once per group of channels. Minima add the same number to
//      all channels of a group, the residual a combination of B: both are kept as sums over tokens
//      (vectors of partial sums) and enter o when the panel, or the run, ends.
// Where bits are split there are no scales: the tables that decode hold centroids. Only the numbers
// of 8-bit channels have a unit, a power of two, which q and the probabilities take. Codes are
// decoded in registers on their way into the dots. Where many rows share the work, a side is
// decoded into scratch first.
#include "kernels/cpu/attend_packed_avx512.h"

#include "kernels/cpu/packed_exact_avx512.h"
#include "kernels/cpu/packed_fetch_avx512.h"
#include "kernels/cpu/unit_codes.h"

namespace kvlathe {
namespace {

// Of functions whose sums live in registers: every lambda in them must become part of them.
#define KVL_FLATTEN __attribute__((flatten))

// --- Scores. ---

KVL_INLINE const uint16_t* QueryOfRow(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  return static_cast<const uint16_t*>(p.q) + (w.panel->first_row + row) * p.q_stride;
}

// The sums of the lanes of four vectors.
KVL_INLINE void StoreSumsOfLanes(__m512 (&x)[kTileRows], float* to) {
  SwapLanes(x);
  __m512 sums = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4e));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xb1));
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
}

// q of a tile's rows times each group of scales per channel, and its dots with the middles. Rows
// that are not there repeat the last one.
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
      const float* scales = w.s->key_scales + g.value * 2 * kMaxRank + r;
      const __m512 scale = _mm512_load_ps(scales), middle = _mm512_load_ps(scales + kMaxRank);
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

// Scales per channel of this block, where they are not those of the block before; q of all rows
// with them where one group spans the block.
void PrepareChannelScales(const Work& w, bool is_new_run) {
  const PackedSideView& side = w.run.k;
  const int first_token = w.block_idx * kBlockSize;
  if (!is_new_run && first_token % side.group != 0 && w.token_groups == 1) return;
  for (int i = 0; i < w.token_groups; ++i) {
    const int group = first_token / side.group + i;
    ConvertChannelScales(side, side.shared_scales + int64_t{2} * group * side.rank,
                         w.s->key_scales + i * 2 * kMaxRank);
  }
  if (w.token_groups > 1) return;
  for (int row = w.first_row; row < w.panel->n_rows; row += kTileRows) ScaleTileQueries<1>(w, row);
}

// Groups of lines of K from the first of some pairs of dimensions on; a line of `fetches` is asked
// for with each pair.
struct KeyLines {
  const std::byte* codes;
  const std::byte* next;
  int n_pairs;
  FetchList* fetches;
};

// q by row, and by group of tokens where it is scaled by them.
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

// Pairs of dimensions [first_pair, first_pair + n_pairs) of K.
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

// What the residual and exact entries add to the scores of rows [row, row + kRows).
template <int kRows>
KVL_INLINE void AddKeyRepairs(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
  if (w.has_exact_sums(w.run.k)) {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      __m512 repairs[kTileRows];
      LoadTile(w.s->exact[row / kTileRows].scores + kLanes * j.value, repairs);
      Unroll<kRows>([&](auto i) KVL_PART {
        scores[i.value][j.value] = _mm512_add_ps(scores[i.value][j.value], repairs[i.value]);
      });
    });
  }
  for (int f = 0; f < w.run.lowrank; ++f) {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      const __m512 factor = _mm512_load_ps(w.s->key_factor[f] + kLanes * j.value);
      Unroll<kRows>([&](auto i) KVL_PART {
        scores[i.value][j.value] = _mm512_fmadd_ps(_mm512_set1_ps(w.s->q_basis[row + i.value][f]),
                                                   factor, scores[i.value][j.value]);
      });
    });
  }
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
                                         MakeCodeTables<kBits>(side.is_symmetric), scores);
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
  const CodeTables tables = MakeCodeTables<kBits>(side.is_symmetric);
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
}

// Adds the dots with the channels of a segment to scores that wait in memory.
template <int kBits, int kRows>
KVL_FLATTEN void AddSegmentScores(const Work& w, int row, const CodeSegment& segment) {
  __m512 dots[kRows][kBlockLines];
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      dots[i.value][j.value] = _mm512_load_ps(w.s->probs[row + i.value] + kLanes * j.value);
    });
  });
  const std::byte* codes = w.block + segment.codes;
  const std::byte* next = w.next + segment.codes;
  if constexpr (kBits == kDecodedBits) {
    codes = next = reinterpret_cast<const std::byte*>(w.s->lines + kBlockSize * segment.first);
  }
  AddKeyDots<kBits, kRows, 1>({codes, next, segment.n_channels / 2, &w.s->fetches},
                              {w.s->q[row] + segment.first, kMaxRank, 0},
                              LoadCodeTables<kBits>(segment.centroids), dots);
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      _mm512_store_ps(w.s->probs[row + i.value] + kLanes * j.value, dots[i.value][j.value]);
    });
  });
}

template <int kRows>
KVL_INLINE void ScoreBySegment(const Work& w, int row, __m512 (&scores)[kRows][kBlockLines]) {
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
  if (w.is_decoded) {
    AddSegmentScores<kDecodedBits, kRows>(w, row, {kDecodedBits, 0, side.rank, 0});
  } else {
    for (int i = 0; i < side.n_segments; ++i) {
      WithSegmentBits(side.segments[i].bits, [&](auto bits) KVL_PART {
        AddSegmentScores<bits.value, kRows>(w, row, side.segments[i]);
      });
    }
  }
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      scores[i.value][j.value] = _mm512_load_ps(w.s->probs[row + i.value] + kLanes * j.value);
    });
  });
}

// Probabilities in F32: they meet scales and middles before they are rounded.
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
    if (is_masked) MaskScores(LimitOfRow(p, first + i.value) - w.first_entry, scores[i.value]);
    if (is_windowed) {
      MaskFirstScores(BeginOfRow(p, first + i.value) - w.first_entry, scores[i.value]);
    }
    RowState* state = &panel.rows[row + i.value];
    float* sums = panel.sums[row + i.value];
    RaiseRowMax(MaxOfLines(scores[i.value]), panel.log2_scale, state, sums);
    StoreProbabilities(scores[i.value], panel.log2_scale, *state, sums, w.s->probs[row + i.value]);
  });
}

// --- Values. ---

// Probabilities of a tile's rows times the scales of each group of channels; their sums with
// middles and factors.
template <int kRows>
KVL_FLATTEN void WeightRows(const Work& w, int row) {
  __m512 probs[kRows][kBlockLines];
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kBlockLines>([&](auto j) KVL_PART {
      probs[i.value][j.value] = _mm512_load_ps(w.s->probs[row + i.value] + kLanes * j.value);
    });
  });
  // Adds to the sums of the first row; those of the next lie `step` behind.
  const auto add_products = [&](const float* with, float* sums, int64_t step) KVL_PART {
    __m512 lines[kBlockLines];
    Unroll<kBlockLines>([&](auto j)
                            KVL_PART { lines[j.value] = _mm512_load_ps(with + kLanes * j.value); });
    Unroll<kRows>([&](auto i) KVL_PART {
      const __m512 shrink = _mm512_set1_ps(w.panel->rows[row + i.value].shrink);
      __m512 sum = _mm512_mul_ps(_mm512_load_ps(sums + i.value * step), shrink);
      Unroll<kBlockLines>([&](auto j) KVL_PART {
        sum = _mm512_fmadd_ps(probs[i.value][j.value], lines[j.value], sum);
      });
      _mm512_store_ps(sums + i.value * step, sum);
    });
  };
  const PackedSideView& side = w.run.v;
  const int n_groups = side.n_segments == 0 ? side.n_groups : side.segments[0].bits == 8 ? 2 : 1;
  for (int group = 0; group < n_groups; ++group) {
    const float* scales = w.s->value_scales + group * 2 * kBlockSize;
    Unroll<kBlockLines / 2>([&](auto j) KVL_PART {
      const __m512 low = _mm512_load_ps(scales + 2 * kLanes * j.value);
      const __m512 high = _mm512_load_ps(scales + 2 * kLanes * j.value + kLanes);
      Unroll<kRows>([&](auto i) KVL_PART {
        const __m512bh scaled =
            _mm512_cvtne2ps_pbh(_mm512_mul_ps(probs[i.value][2 * j.value + 1], high),
                                _mm512_mul_ps(probs[i.value][2 * j.value], low));
        _mm512_store_si512(w.s->weights[group][i.value] + 32 * j.value,
                           reinterpret_cast<__m512i>(scaled));
      });
    });
    if (side.is_symmetric || side.n_segments > 0) continue;
    add_products(scales + kBlockSize, w.s->middles[row][group], kMaxGroups * kLanes);
  }
  for (int f = 0; f < w.run.lowrank; ++f) {
    add_products(w.s->value_factor[f], w.s->factors[row][f], kMaxLowrank * kLanes);
  }
}

// The groups of lines of V of some channels: those of the same pairs follow each other, `step`
// bytes in all.
struct ValueLines {
  const std::byte* codes;
  const std::byte* next;
  int64_t step;
  CodeTables tables;
};

// o[rows, 16 * kLines dims from dim on] = shrink * o + weights * codes, which start with `dim`.
template <int kBits, int kRows, int kLines>
KVL_FLATTEN void ValueTile(const Work& w, int row, int dim, const uint16_t* weights,
                           const ValueLines& from) {
  using Group = CodeGroup<kBits>;
  const AttendParams& p = *w.panel->p;
  float* o = p.o + (w.panel->first_row + row) * p.o_stride + dim;
  const std::byte *codes = from.codes, *next = from.next;
  const int64_t step = from.step;
  const CodeTables tables = from.tables;
  __m512 sums[kRows][kLines];
  Unroll<kRows>([&](auto i) KVL_PART {
    const __m512 shrink = _mm512_set1_ps(w.panel->rows[row + i.value].shrink);
    Unroll<kLines>([&](auto j) KVL_PART {
      sums[i.value][j.value] =
          _mm512_mul_ps(_mm512_loadu_ps(o + i.value * p.o_stride + kLanes * j.value), shrink);
    });
  });
  for (int pair = 0; pair < kBlockSize / 2; pair += Group::kLines) {
    Unroll<Group::kLines>([&](auto line) KVL_PART {
      __m512bh lines[kLines];
      Unroll<kLines>([&](auto j) KVL_PART {
        lines[j.value] = Group(codes + j.value * Group::kBytes).template Line<line.value>(tables);
      });
      Unroll<kRows>([&](auto i) KVL_PART {
        const __m512bh weight =
            BroadcastPair(weights + i.value * kBlockSize + 2 * (pair + line.value));
        Unroll<kLines>([&](auto j) KVL_PART {
          sums[i.value][j.value] = _mm512_dpbf16_ps(sums[i.value][j.value], lines[j.value], weight);
        });
      });
    });
    Unroll<kLines>([&](auto j) KVL_PART { PrefetchGroup<kBits>(next + j.value * Group::kBytes); });
    codes += step;
    next += step;
  }
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kLines>([&](auto j) KVL_PART {
      _mm512_storeu_ps(o + i.value * p.o_stride + kLanes * j.value, sums[i.value][j.value]);
    });
  });
}

// Channels [dim, end), of which `from` starts with the first.
template <int kBits, int kRows>
KVL_INLINE void ValueTiles(const Work& w, int row, int dim, int end, const uint16_t* weights,
                           ValueLines from) {
  constexpr int64_t kTileBytes = int64_t{4} * CodeGroup<kBits>::kBytes;
  for (; dim + 64 <= end; dim += 64) {
    ValueTile<kBits, kRows, 4>(w, row, dim, weights, from);
    from.codes += kTileBytes;
    from.next += kTileBytes;
  }
  switch ((end - dim) / kLanes) {
    case 1:
      return ValueTile<kBits, kRows, 1>(w, row, dim, weights, from);
    case 2:
      return ValueTile<kBits, kRows, 2>(w, row, dim, weights, from);
    case 3:
      return ValueTile<kBits, kRows, 3>(w, row, dim, weights, from);
    default:
      return;
  }
}

// Of channels from `dim` on, of a part of the codes that starts `codes` bytes into the block with
// channel `first` and has n_channels.
template <int kBits>
KVL_INLINE ValueLines ValueLinesOf(const Work& w, const CodeSegment& part, int dim,
                                   const CodeTables& tables) {
  const int64_t skip = int64_t{dim - part.first} / kLanes * CodeGroup<kBits>::kBytes;
  const std::byte* codes = w.block + part.codes;
  if constexpr (kBits == kDecodedBits) {
    codes = reinterpret_cast<const std::byte*>(w.s->lines + 2 * part.first);
  }
  const int width = kBits == kDecodedBits ? w.run.v.rank : part.n_channels;
  return {codes + skip, w.next + part.codes + skip,
          int64_t{width} / kLanes * CodeGroup<kBits>::kBytes, tables};
}

// Weights by what the numbers of a segment are units of: see FillUnits.
template <int kRows>
void AddSegmentValues(const Work& w, int row) {
  const PackedSideView& side = w.run.v;
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    const uint16_t* weights = w.s->weights[segment.bits == 8 ? 1 : 0][0];
    const int end = segment.first + segment.n_channels;
    WithSegmentBits(w.is_decoded ? kDecodedBits : segment.bits, [&](auto bits) KVL_PART {
      const CodeTables tables = LoadCodeTables<bits.value>(segment.centroids);
      ValueTiles<bits.value, kRows>(w, row, segment.first, end, weights,
                                    ValueLinesOf<bits.value>(w, segment, segment.first, tables));
    });
  }
}

template <int kBits, int kRows>
void AddValues(const Work& w, int row) {
  WeightRows<kRows>(w, row);
  if (w.has_exact_sums(w.run.v)) AddExactValues(w, row);
  if constexpr (kBits == kSplit) {
    return AddSegmentValues<kRows>(w, row);
  } else {
    const PackedSideView& side = w.run.v;
    const CodeTables tables = MakeCodeTables<kBits>(side.is_symmetric);
    for (int group = 0; group < side.n_groups; ++group) {
      const int dim = group * side.group, end = Min(side.rank, dim + side.group);
      ValueTiles<kBits, kRows>(
          w, row, dim, end, w.s->weights[group][0],
          ValueLinesOf<kBits>(w, {kBits, 0, side.rank, side.codes}, dim, tables));
    }
  }
}

// --- Blocks and runs. ---

// Calls f with the bits of the lines to read and the rows of the tile as compile-time Index.
template <typename F>
KVL_INLINE void WithTileShape(int bits, int n_rows, const F& f) {
  const auto with_rows = [&](auto rows) __attribute__((always_inline)) {
    if (bits == kSplit) return f(Index<kSplit>{}, rows);
    WithBits(
        bits, [&](auto constant) __attribute__((always_inline)) { f(constant, rows); });
  };
  switch (n_rows) {
    case 1:
      return with_rows(Index<1>{});
    case 2:
      return with_rows(Index<2>{});
    case 3:
      return with_rows(Index<3>{});
    default:
      return with_rows(Index<4>{});
  }
}

void AttendBlock(const Work& w, bool is_new_run) {
  const PackedRunView& run = w.run;
  const int n_rows = w.panel->n_rows;
  const bool is_split = run.k.n_segments > 0;
  if (run.k.is_per_channel) {
    PrepareChannelScales(w, is_new_run);
  } else if (!is_split) {
    ConvertTokenScales(w, run.k, w.s->key_scales);
  }
  for (int row = w.first_row; w.has_exact_sums(run.k) && row < n_rows; row += kTileRows) {
    AddExactScores(w, row);
  }
  if (!is_split) ConvertTokenScales(w, run.v, w.s->value_scales);
  ConvertFactor(w, run.k, w.s->key_factor);
  ConvertFactor(w, run.v, w.s->value_factor);
  if (w.is_decoded) DecodeSide<true>(w);
  const int key_bits = is_split ? kSplit : w.is_decoded ? kDecodedBits : run.k.bits;
  for (int row = w.first_row; row < n_rows; row += kTileRows) {
    WithTileShape(key_bits, Min(kTileRows, n_rows - row),
                  [&](auto bits, auto rows) { ScoreTile<bits.value, rows.value>(w, row); });
  }
  if (w.is_decoded) DecodeSide<false>(w);
  const int value_bits = is_split ? kSplit : w.is_decoded ? kDecodedBits : run.v.bits;
  for (int row = w.first_row; row < n_rows; row += kTileRows) {
    WithTileShape(value_bits, Min(kTileRows, n_rows - row),
                  [&](auto bits, auto rows) { AddValues<bits.value, rows.value>(w, row); });
  }
}

// o += the repairs of V of the run that ends.
void EndRun(const Work& w) {
  const AttendParams& p = *w.panel->p;
  for (int row = 0; w.has_exact_sums(w.run.v) && row < w.panel->n_rows; row += kTileRows) {
    EndExactValues(w, row);
  }
  for (int row = 0; row < w.panel->n_rows; ++row) {
    float* o = p.o + (w.panel->first_row + row) * p.o_stride;
    for (int f = 0; f < w.run.lowrank; ++f) {
      const __m512 weight =
          _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(w.s->factors[row][f])));
      const F16* basis = w.run.v.basis + f * w.run.v.rank;
      for (int r = 0; r < w.run.v.rank; r += kLanes) {
        _mm512_storeu_ps(o + r,
                         _mm512_fmadd_ps(weight, LoadHalf(basis + r), _mm512_loadu_ps(o + r)));
      }
    }
  }
}

void BeginRun(const PackedRun& run, Work* w) {
  ViewRuns(run, w);
  const PackedSideView& k = w->run.k;
  w->token_groups = k.is_per_channel ? Max(1, kBlockSize / k.group) : 1;
  w->is_decoded = w->panel->n_rows >= kMinDecodedRows || w->panel->p->is_deterministic;
  if (k.ends != nullptr) w->key_places = PlacesOfScales(k, w->token_groups);
  if (w->run.v.ends != nullptr) w->value_places = PlacesOfScales(w->run.v, 1);
  for (int row = 0; row < w->panel->n_rows; row += kTileRows) {
    if (w->has_exact_sums(k)) PrepareExactScores(*w, row);
    if (w->has_exact_sums(w->run.v)) ClearExactValues(*w, row);
  }
  for (int row = 0; row < w->panel->n_rows; ++row) {
    for (int f = 0; f < w->run.lowrank; ++f) {
      __m512 sum = _mm512_setzero_ps();
      for (int r = 0; r < k.rank; r += kLanes) {
        sum = _mm512_fmadd_ps(LoadBf16(QueryOfRow(*w, row) + r), LoadHalf(k.basis + f * k.rank + r),
                              sum);
      }
      w->s->q_basis[row][f] = _mm512_reduce_add_ps(sum);
      _mm512_store_ps(w->s->factors[row][f], _mm512_setzero_ps());
    }
  }
}

// The unit of 8-bit numbers of split bits, in q and, as two groups of scales, for the
// probabilities.
void FillUnits(const Work& w) {
  constexpr float kUnit = kUnitStep / CodeUnit(8);
  const PackedSideView& k = w.run.k;
  const int n_wide = k.segments[0].bits == 8 ? k.segments[0].n_channels : 0;
  for (int row = 0; row < w.panel->n_rows; ++row) {
    for (int r = 0; r < k.rank; r += kLanes) {
      const __m512 unit = _mm512_set1_ps(r < n_wide ? kUnit : 1.0f);
      const __m256bh q = _mm512_cvtneps_pbh(_mm512_mul_ps(LoadBf16(QueryOfRow(w, row) + r), unit));
      _mm256_store_si256(reinterpret_cast<__m256i*>(w.s->q[row] + r), reinterpret_cast<__m256i>(q));
    }
  }
  for (int t = 0; t < kBlockSize; ++t) {
    w.s->value_scales[t] = 1;
    w.s->value_scales[2 * kBlockSize + t] = kUnit;
  }
}

// What depends on neither block nor run: sums of q over groups of channels, and empty sums.
void BeginPanel(const Work& w) {
  const PackedSideView &k = w.run.k, &v = w.run.v;
  if (k.n_segments > 0) return FillUnits(w);
  for (int row = 0; row < w.panel->n_rows; ++row) {
    for (int group = 0; !k.is_per_channel && group < k.n_groups; ++group) {
      __m512 sum = _mm512_setzero_ps();
      for (int r = group * k.group; r < Min(k.rank, (group + 1) * k.group); r += kLanes) {
        sum = _mm512_add_ps(sum, LoadBf16(QueryOfRow(w, row) + r));
      }
      w.s->q_sums[row][group] = _mm512_reduce_add_ps(sum);
    }
    for (int group = 0; group < v.n_groups; ++group) {
      _mm512_store_ps(w.s->middles[row][group], _mm512_setzero_ps());
    }
  }
}

// o += what the middles of V add to each group of channels.
void EndPanel(const Work& w) {
  const AttendParams& p = *w.panel->p;
  const PackedSideView& side = w.run.v;
  if (side.is_symmetric || side.n_segments > 0) return;
  for (int row = 0; row < w.panel->n_rows; ++row) {
    float* o = p.o + (w.panel->first_row + row) * p.o_stride;
    for (int group = 0; group < side.n_groups; ++group) {
      const __m512 sum =
          _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(w.s->middles[row][group])));
      for (int r = group * side.group; r < Min(side.rank, (group + 1) * side.group); r += kLanes) {
        _mm512_storeu_ps(o + r, _mm512_add_ps(_mm512_loadu_ps(o + r), sum));
      }
    }
  }
}

}  // namespace

bool CanAttendPacked(const PackedHead& head) {
  return Max(head.format.prompt_rank, head.format.decode_rank) <= kMaxLowrank;
}

int AttendPackedBlocks(const PackedPanel& panel, int entry, int kv_end) {
  const AttendParams& p = *panel.p;
  int run_idx = 0;
  const PackedRun* run = nullptr;
  Work w = {.panel = &panel, .s = reinterpret_cast<PackedScratch*>(panel.scratch)};
  for (; entry < kv_end; entry += kBlockSize) {
    const int block = entry / kBlockSize;
    const PackedRun* before = run;
    run = FindRun(*p.packed, block, &run_idx);
    if (before != nullptr && run != before) EndRun(w);
    if (run == nullptr) {
      if (before != nullptr) EndPanel(w);
      return entry;
    }
    if (run != before) BeginRun(*run, &w);
    if (before == nullptr) BeginPanel(w);
    while (LimitOfRow(p, panel.first_row + Min(w.first_row + kTileRows, panel.n_rows) - 1) <=
           entry) {
      w.first_row += kTileRows;
    }
    w.block = p.blocks[block];
    w.next = entry + kBlockSize < kv_end ? p.blocks[block + 1] : w.block;
    w.block_idx = block - run->first_block;
    w.first_entry = entry;
    ListFetches(w, *run);
    AttendBlock(w, run != before);
  }
  if (run != nullptr) {
    EndRun(w);
    EndPanel(w);
  }
  return entry;
}

}  // namespace kvlathe
