// Attention that reads sealed blocks with AVX-512 BF16 dots. Codes are small integers, which Bf16
// holds exactly, so dots take them as they are, and what belongs to a scale group is applied
// outside:
//   K  scales per channel multiply q once per group of tokens; scales per token multiply the dots
//      of their group of channels. Minima add the dot of q and minima, or minima times the sum of
//      q.
//   V  scales multiply the probabilities, once per group of channels. Minima add the same number to
//      all channels of a group, the residual a combination of B: both are kept as sums over tokens
//      (vectors of partial sums) and enter o when the panel, or the run, ends.
// Where tiles are balanced, scores are multiplied with a number of each token, and what a block
// adds to o with one of each channel; middles enter o with every block then. Where bits are split
// the tables that decode hold centroids. Only the numbers of 8-bit channels have a unit, a power of
// two, which q and the probabilities take; channels of K with a scale in each block multiply q by
// it, and the dots of q and offsets begin the scores; scales of tokens multiply scores and
// probabilities. Codes are decoded in registers on their way into the dots. Where many rows share
// the work, a side is decoded into scratch first.
#include "cpu/kernels/attend/avx512/attend_packed_avx512.h"

#include "base/check.h"
#include "cpu/kernels/attend/avx512/packed_exact_avx512.h"
#include "cpu/kernels/attend/avx512/packed_fetch_avx512.h"
#include "cpu/kernels/attend/avx512/packed_scores_avx512.h"
#include "cpu/kernels/attend/avx512/packed_values_avx512.h"

namespace kvlathe {
namespace {

// Calls f with the rows of a tile as a compile-time Index.
template <typename F>
KVL_INLINE void WithRows(int n_rows, const F& f) {
  switch (n_rows) {
    case 1:
      return f(Index<1>{});
    case 2:
      return f(Index<2>{});
    case 3:
      return f(Index<3>{});
    default:
      return f(Index<4>{});
  }
}

// The same with the bits of the lines to read.
template <typename F>
KVL_INLINE void WithTileShape(int bits, int n_rows, const F& f) {
  WithRows(
      n_rows, [&](auto rows) __attribute__((always_inline)) {
        if (bits == kSplit) return f(Index<kSplit>{}, rows);
        WithBits(
            bits, [&](auto constant) __attribute__((always_inline)) { f(constant, rows); });
      });
}

void AttendBlock(const Work& w, bool is_new_run) {
  const PackedRunView& run = w.run;
  const int n_rows = w.panel->n_rows;
  const bool is_split = run.k.n_segments > 0;
  if (run.k.is_per_channel) {
    PrepareChannelScales(w, is_new_run);
  } else if (run.k.has_token_scales) {
    PrepareUnitScales(w);
  } else if (!is_split) {
    ConvertTokenScales(w, run.k, w.s->key_scales);
  }
  for (int row = w.first_row; w.has_exact_sums(run.k) && row < n_rows; row += kTileRows) {
    WithRows(Min(kTileRows, n_rows - row), [&](auto rows) { AddExactScores<rows.value>(w, row); });
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
  for (int row = 0; row < w.panel->n_rows; ++row) {
    float* o = p.o + (w.panel->first_row + row) * p.o_stride;
    for (int f = 0; f < w.run.lowrank; ++f) {
      const __m512 weight =
          _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(w.s->factors[w.FactorOf(row, f)])));
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
  if (w->is_decoded && k.exact.ends != nullptr) w->key_places = PlacesOfScales(k, w->token_groups);
  if (w->is_decoded && w->run.v.exact.ends != nullptr)
    w->value_places = PlacesOfScales(w->run.v, 1);
  for (int row = 0; row < w->panel->n_rows; ++row) {
    for (int f = 0; f < w->run.lowrank; ++f) {
      __m512 sum = _mm512_setzero_ps();
      for (int r = 0; r < k.rank; r += kLanes) {
        sum = _mm512_fmadd_ps(LoadBf16(QueryOfRow(*w, row) + r), LoadHalf(k.basis + f * k.rank + r),
                              sum);
      }
      w->s->q_basis[w->FactorOf(row, f)] = _mm512_reduce_add_ps(sum);
      _mm512_store_ps(w->s->factors[w->FactorOf(row, f)], _mm512_setzero_ps());
    }
  }
}

// The unit of 8-bit numbers of split bits, in q and, as two groups of scales, for the
// probabilities.
void FillUnits(const Work& w) {
  const PackedSideView& k = w.run.k;
  const int n_wide = ByteChannels(k);
  for (int row = 0; row < w.panel->n_rows; ++row) {
    for (int r = 0; r < k.rank; r += kLanes) {
      const __m512 unit = _mm512_set1_ps(r < n_wide ? kByteUnit : 1.0f);
      const __m256bh q = _mm512_cvtneps_pbh(_mm512_mul_ps(LoadBf16(QueryOfRow(w, row) + r), unit));
      _mm256_store_si256(reinterpret_cast<__m256i*>(w.s->q[row] + r), reinterpret_cast<__m256i>(q));
    }
    w.s->q_minima[row][0] = 0;
  }
  for (int t = 0; t < kBlockSize; ++t) {
    w.s->value_scales[t] = 1;
    w.s->value_scales[2 * kBlockSize + t] = kByteUnit;
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
  if (side.is_symmetric || side.n_segments > 0 || side.balanced_tokens > 0) return;
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

int PanelRowsOf(const PackedHead& head) {
  const int lowrank = Max(head.format.prompt_rank, head.format.decode_rank);
  KVL_DCHECK(lowrank <= kMaxPackedLowrank);
  if (lowrank <= kFactorsOfFullPanel) return kPackedPanelRows;
  return kPanelFactors / lowrank / kTileRows * kTileRows;
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
    // The open run has units of its own, and so do entries of another class.
    if (before == nullptr ||
        (run != before && (run->is_open || run->entry_class != before->entry_class))) {
      BeginPanel(w);
    }
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
