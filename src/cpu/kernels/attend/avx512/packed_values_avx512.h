// Adds the values of a sealed block to the outputs of a tile of rows (attend_packed_avx512.cc).
// Only files compiled with AVX-512 flags may include this, and everything has internal linkage.
#pragma once

#include "cpu/kernels/attend/avx512/packed_scores_avx512.h"

namespace kvlathe {
namespace {

// Multiplies the probabilities of a tile's rows with the scales of each group of channels, and adds
// their products with middles and factors to the sums of these.
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
    for (int i = 0; side.balanced_tokens > 0 && i < kRows; ++i) {
      _mm512_store_ps(w.s->middles[row + i][group], _mm512_setzero_ps());  // of this block alone
    }
    add_products(scales + kBlockSize, w.s->middles[row][group], kMaxGroups * kLanes);
  }
  for (int f = 0; f < w.run.lowrank; ++f) {
    add_products(w.s->value_factor[f], w.s->factors[w.FactorOf(row, f)],
                 int64_t{w.run.lowrank} * kLanes);
  }
}

// The groups of lines of V of some channels. Those of the same pairs follow each other and have
// `step` bytes together.
struct ValueLines {
  const std::byte* codes;
  const std::byte* next;
  int64_t step;
};

// Adds sums of numbers, and of middles, times the balance of their channels to o.
template <int kRows, int kLines>
KVL_INLINE void AddBalanced(const Work& w, int row, int dim, const __m512 (&sums)[kRows][kLines],
                            float* o) {
  const F16* balance = w.run.v.ChannelBalance(w.block_idx) + dim;
  const int64_t o_stride = w.panel->p->o_stride;
  Unroll<kRows>([&](auto i) KVL_PART {
    const __m512 shrink = _mm512_set1_ps(w.panel->rows[row + i.value].shrink);
    const __m512 middle =
        _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(w.s->middles[row + i.value][0])));
    Unroll<kLines>([&](auto j) KVL_PART {
      float* const to = o + i.value * o_stride + kLanes * j.value;
      const __m512 sum = _mm512_add_ps(sums[i.value][j.value], middle);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, LoadHalf(balance + kLanes * j.value),
                                           _mm512_mul_ps(_mm512_loadu_ps(to), shrink)));
    });
  });
}

// Sets o[rows, 16 * kLines dims from dim on] to shrink * o + weights * codes, where the codes start
// with `dim`, times the balance of their channels where there is one. The tables are arguments of
// their own because registers pass them so, while a CodeTables would go through memory.
template <int kBits, int kRows, int kLines>
KVL_FLATTEN void ValueTile(const Work& w, int row, int dim, const uint16_t* weights,
                           const ValueLines& from, __m512i low_table, __m512i high_table) {
  using Group = CodeGroup<kBits>;
  const AttendParams& p = *w.panel->p;
  float* o = p.o + (w.panel->first_row + row) * p.o_stride + dim;
  const std::byte *codes = from.codes, *next = from.next;
  const int64_t step = from.step;
  const CodeTables tables = {low_table, high_table};
  // Few sums wait for each other: lines then take turns with two or four of each.
  constexpr int kTurns = Min(Group::kLines, kRows * kLines <= 4 ? 4 : kRows * kLines <= 8 ? 2 : 1);
  __m512 sums[kTurns][kRows][kLines];
  const bool is_balanced = w.run.v.balanced_tokens > 0;
  Unroll<kRows>([&](auto i) KVL_PART {
    const float of_o = is_balanced ? 0 : w.panel->rows[row + i.value].shrink;
    const __m512 shrink = _mm512_set1_ps(of_o);
    Unroll<kLines>([&](auto j) KVL_PART {
      sums[0][i.value][j.value] =
          _mm512_mul_ps(_mm512_loadu_ps(o + i.value * p.o_stride + kLanes * j.value), shrink);
      Unroll<kTurns - 1>([&](auto turn) KVL_PART {
        sums[turn.value + 1][i.value][j.value] = _mm512_setzero_ps();
      });
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
          __m512& sum = sums[line.value % kTurns][i.value][j.value];
          sum = _mm512_dpbf16_ps(sum, lines[j.value], weight);
        });
      });
    });
    Unroll<kLines>([&](auto j) KVL_PART {
      PrefetchGroup<kBits>(next + j.value * Group::kBytes);
      w.s->fetches.PrefetchNext();
    });
    codes += step;
    next += step;
  }
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<kLines>([&](auto j) KVL_PART {
      __m512& sum = sums[0][i.value][j.value];
      Unroll<kTurns - 1>([&](auto turn) KVL_PART {
        sum = _mm512_add_ps(sum, sums[turn.value + 1][i.value][j.value]);
      });
      if (!is_balanced) _mm512_storeu_ps(o + i.value * p.o_stride + kLanes * j.value, sum);
    });
  });
  if (is_balanced) AddBalanced(w, row, dim, sums[0], o);
}

// Adds the channels [dim, end). `from` starts with the first of them.
template <int kBits, int kRows>
KVL_INLINE void ValueTiles(const Work& w, int row, int dim, int end, const uint16_t* weights,
                           ValueLines from, const CodeTables& tables) {
  constexpr int64_t kTileBytes = int64_t{4} * CodeGroup<kBits>::kBytes;
  for (; dim + 64 <= end; dim += 64) {
    ValueTile<kBits, kRows, 4>(w, row, dim, weights, from, tables.low, tables.high);
    from.codes += kTileBytes;
    from.next += kTileBytes;
  }
  switch ((end - dim) / kLanes) {
    case 1:
      return ValueTile<kBits, kRows, 1>(w, row, dim, weights, from, tables.low, tables.high);
    case 2:
      return ValueTile<kBits, kRows, 2>(w, row, dim, weights, from, tables.low, tables.high);
    case 3:
      return ValueTile<kBits, kRows, 3>(w, row, dim, weights, from, tables.low, tables.high);
    default:
      return;
  }
}

// The lines of the channels from `dim` on, all of which are in `part` of the codes of the block.
template <int kBits>
KVL_INLINE ValueLines ValueLinesOf(const Work& w, const CodeSegment& part, int dim) {
  const int64_t skip = int64_t{dim - part.first} / kLanes * CodeGroup<kBits>::kBytes;
  const std::byte* codes = w.block + part.codes;
  if constexpr (kBits == kDecodedBits) {
    codes = reinterpret_cast<const std::byte*>(w.s->lines + 2 * part.first);
  }
  const int width = kBits == kDecodedBits ? w.run.v.rank : part.n_channels;
  return {codes + skip, w.next + part.codes + skip,
          int64_t{width} / kLanes * CodeGroup<kBits>::kBytes};
}

// The channels without codes add nothing to sums, which shrink all the same.
template <int kRows>
KVL_INLINE void ShrinkUncoded(const Work& w, int row) {
  const PackedSideView& side = w.run.v;
  const AttendParams& p = *w.panel->p;
  for (int i = 0; i < kRows; ++i) {
    float* const o = p.o + (w.panel->first_row + row + i) * p.o_stride;
    const __m512 shrink = _mm512_set1_ps(w.panel->rows[row + i].shrink);
    for (int r = side.n_coded; r < side.rank; r += kLanes) {
      _mm512_storeu_ps(o + r, _mm512_mul_ps(_mm512_loadu_ps(o + r), shrink));
    }
  }
}

// Adds the values where bits are split. Weights come in the units of the numbers of a segment
// (FillUnits). Decoded lines do not end with their segments, so that tiles may be wider.
template <int kRows>
void AddSegmentValues(const Work& w, int row) {
  const PackedSideView& side = w.run.v;
  if (w.is_decoded) {
    const int n_bytes = ByteChannels(side);
    const CodeSegment lines = {kDecodedBits, 0, side.rank, 0};
    const CodeTables none = {};
    ValueTiles<kDecodedBits, kRows>(w, row, 0, n_bytes, w.s->weights[1][0],
                                    ValueLinesOf<kDecodedBits>(w, lines, 0), none);
    ValueTiles<kDecodedBits, kRows>(w, row, n_bytes, side.n_coded, w.s->weights[0][0],
                                    ValueLinesOf<kDecodedBits>(w, lines, n_bytes), none);
    return ShrinkUncoded<kRows>(w, row);
  }
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    const uint16_t* weights = w.s->weights[segment.bits == 8 ? 1 : 0][0];
    const int end = segment.first + segment.n_channels;
    WithSegmentBits(segment.bits, [&](auto bits) KVL_PART {
      ValueTiles<bits.value, kRows>(w, row, segment.first, end, weights,
                                    ValueLinesOf<bits.value>(w, segment, segment.first),
                                    LoadCodeTables<bits.value>(segment.table));
    });
  }
  ShrinkUncoded<kRows>(w, row);
}

template <int kBits, int kRows>
void AddValues(const Work& w, int row) {
  WeightRows<kRows>(w, row);
  if constexpr (kBits == kSplit) {
    return AddSegmentValues<kRows>(w, row);
  } else {
    const PackedSideView& side = w.run.v;
    const CodeTables tables = SideTables<kBits>(side);
    for (int group = 0; group < side.n_groups; ++group) {
      const int dim = group * side.group, end = Min(side.rank, dim + side.group);
      ValueTiles<kBits, kRows>(w, row, dim, end, w.s->weights[group][0],
                               ValueLinesOf<kBits>(w, {kBits, 0, side.rank, side.codes}, dim),
                               tables);
    }
    if (w.has_exact_sums(side)) AddExactValues<kRows>(w, row);
  }
}

}  // namespace
}  // namespace kvlathe
