// Exact entries of a packed block. The code at their places is 0, so what they add is what they
// differ from the value of that code: to the scores of their tokens, to the channels of the
// outputs. Where many rows share a block they are written into its decoded lines instead. For files
// compiled with AVX-512 flags only; everything has internal linkage.
#pragma once

#include "kernels/cpu/packed_block_avx512.h"

namespace kvlathe {
namespace {

constexpr int32_t kBf16Mask = static_cast<int32_t>(0xffff0000);  // of the value of a SparseEntry

inline ScalePlaces PlacesOfScales(const PackedSideView& side, int token_groups) {
  ScalePlaces places = {.token_shift = __builtin_ctz(kBlockSize / token_groups),
                        .middles = side.is_per_channel ? kMaxRank : kBlockSize};
  for (int i = 0; i < kMaxGroups; ++i) {
    places.group_offsets[i] = side.is_per_channel ? 0 : i * 16 / side.group * 2 * kBlockSize;
  }
  return places;
}

// --- Tiles: numbers of 16 tokens or channels, from four rows to four at each place and back. ---

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

KVL_INLINE __m512 Transposed4x4(__m512 x) {
  const __m512i places = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  return _mm512_permutexvar_ps(places, x);
}

KVL_INLINE void StoreTile(__m512 (&rows)[kTileRows], TileNumbers* to) {
  SwapLanes(rows);
  Unroll<kTileRows>([&](auto i) KVL_PART {
    _mm512_store_ps(to[kTileRows * i.value], Transposed4x4(rows[i.value]));
  });
}

KVL_INLINE void LoadTile(const TileNumbers* from, __m512 (&rows)[kTileRows]) {
  Unroll<kTileRows>([&](auto i) KVL_PART {
    rows[i.value] = Transposed4x4(_mm512_load_ps(from[kTileRows * i.value]));
  });
  SwapLanes(rows);
}

// --- Sums of a tile. ---

// Adds (value - middle) * from[token or channel] to to[channel or token] of each entry.
// `middle_of(token, channel)` is its place among `middles`.
template <bool kIsKey, typename MiddleOf>
KVL_INLINE void AddDifferences(SparseRange range, const float* middles, const MiddleOf& middle_of,
                               const TileNumbers* from, TileNumbers* to) {
  const __m128i mask = _mm_set1_epi32(kBf16Mask);
  for (const SparseEntry* entry = range.begin; entry != range.end; ++entry) {
    int32_t bits;
    __builtin_memcpy(&bits, entry, sizeof(bits));
    const size_t token = entry->place % kBlockSize, channel = entry->place / kBlockSize;
    const __m128 value = _mm_castsi128_ps(_mm_and_si128(_mm_set1_epi32(bits), mask));
    const __m128 difference = _mm_sub_ps(value, _mm_set1_ps(middles[middle_of(token, channel)]));
    const __m128 factor = _mm_load_ps(from[kIsKey ? channel : token]);
    float* sum = to[kIsKey ? token : channel];
    _mm_store_ps(sum, _mm_fmadd_ps(difference, factor, _mm_load_ps(sum)));
  }
}

// The same with middles as a side of the scratch has them.
template <bool kIsKey>
KVL_INLINE void AddDifferences(const PackedSideView& side, SparseRange range,
                               const ScalePlaces& places, const float* scales,
                               const TileNumbers* from, TileNumbers* to) {
  const float* middles = scales + places.middles;
  if (side.is_per_channel && places.token_shift == 6) {
    return AddDifferences<kIsKey>(
        range, middles, [](size_t, size_t channel) { return channel; }, from, to);
  }
  if (side.is_per_channel) {
    const int shift = places.token_shift;
    return AddDifferences<kIsKey>(
        range, middles,
        [shift](size_t token, size_t channel) { return channel + (token >> shift) * 2 * kMaxRank; },
        from, to);
  }
  if (side.n_groups == 1) {
    return AddDifferences<kIsKey>(
        range, middles, [](size_t token, size_t) { return token; }, from, to);
  }
  AddDifferences<kIsKey>(
      range, middles,
      [&places](size_t token, size_t channel) {
        return token + places.group_offsets[channel / 16];
      },
      from, to);
}

// q of a tile's rows by channel, for AddExactScores.
inline void PrepareExactScores(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  const int n_rows = Min(kTileRows, w.panel->n_rows - row);
  const uint16_t* q = static_cast<const uint16_t*>(p.q) + (w.panel->first_row + row) * p.q_stride;
  for (int r = 0; r < w.run.k.rank; r += kLanes) {
    __m512 rows[kTileRows];
    Unroll<kTileRows>([&](auto i) KVL_PART {
      rows[i.value] =
          i.value < n_rows ? LoadBf16(q + i.value * p.q_stride + r) : _mm512_setzero_ps();
    });
    StoreTile(rows, w.s->exact[row / kTileRows].q + r);
  }
}

// What exact entries of K add to the scores of a tile, into its ExactSums.
inline void AddExactScores(const Work& w, int row) {
  ExactSums& sums = w.s->exact[row / kTileRows];
  Unroll<kBlockSize / kTileRows>([&](auto i) KVL_PART {
    _mm512_store_ps(sums.scores[kTileRows * i.value], _mm512_setzero_ps());
  });
  const PackedSideView& side = w.run.k;
  const SparseRange range = SparseEntriesOf(side, w.block_idx);
  AddDifferences<true>(side, range, w.key_places, w.s->key_scales, sums.q, sums.scores);
}

// The same of V to o, which the tile's sums hold until the run ends.
inline void AddExactValues(const Work& w, int row) {
  ExactSums& sums = w.s->exact[row / kTileRows];
  const PackedSideView& side = w.run.v;
  const int n_rows = Min(kTileRows, w.panel->n_rows - row);
  alignas(16) float shrinks[kTileRows] = {1, 1, 1, 1};
  bool has_shrunk = false;
  for (int i = 0; i < n_rows; ++i) {
    shrinks[i] = w.panel->rows[row + i].shrink;
    has_shrunk |= shrinks[i] != 1;
  }
  if (has_shrunk) {
    const __m512 shrink = _mm512_broadcast_f32x4(_mm_load_ps(shrinks));
    for (int r = 0; r < side.rank; r += kTileRows) {
      _mm512_store_ps(sums.o[r], _mm512_mul_ps(_mm512_load_ps(sums.o[r]), shrink));
    }
  }
  for (int t = 0; t < kBlockSize; t += kLanes) {
    __m512 probs[kTileRows];
    Unroll<kTileRows>([&](auto i) KVL_PART {
      probs[i.value] =
          i.value < n_rows ? _mm512_load_ps(w.s->probs[row + i.value] + t) : _mm512_setzero_ps();
    });
    StoreTile(probs, sums.probs + t);
  }
  AddDifferences<false>(side, SparseEntriesOf(side, w.block_idx), w.value_places, w.s->value_scales,
                        sums.probs, sums.o);
}

inline void ClearExactValues(const Work& w, int row) {
  for (int r = 0; r < w.run.v.rank; r += kTileRows) {
    _mm512_store_ps(w.s->exact[row / kTileRows].o[r], _mm512_setzero_ps());
  }
}

// o += the sums of a tile over the run that ends.
inline void EndExactValues(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  const int n_rows = Min(kTileRows, w.panel->n_rows - row);
  float* o = p.o + (w.panel->first_row + row) * p.o_stride;
  for (int r = 0; r < w.run.v.rank; r += kLanes) {
    __m512 sums[kTileRows];
    LoadTile(w.s->exact[row / kTileRows].o + r, sums);
    Unroll<kTileRows>([&](auto i) KVL_PART {
      if (i.value >= n_rows) return;
      float* to = o + i.value * p.o_stride + r;
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[i.value]));
    });
  }
}

// --- Decoded lines. ---

// Replaces codes by what the scales of their places turn back into the exact values, 16 entries at
// a time. `scales` is key_scales or value_scales of the scratch.
template <bool kIsKey>
void PutExactEntries(const PackedSideView& side, int block_idx, const ScalePlaces& scale_places,
                     const float* scales, uint16_t* lines) {
  const SparseRange range = SparseEntriesOf(side, block_idx);
  const int n_entries = static_cast<int>(range.end - range.begin);
  const __m512i groups = _mm512_loadu_si512(scale_places.group_offsets);
  const __m128i token_shift = _mm_cvtsi32_si128(scale_places.token_shift);
  const bool is_per_channel = side.is_per_channel;
  const float* middles = scales + scale_places.middles;
  for (int i = 0; i < n_entries; i += kLanes) {
    const int n = Min(kLanes, n_entries - i);
    const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1);
    const __m512i entries = _mm512_maskz_loadu_epi32(mask, range.begin + i);
    const __m512i token = _mm512_and_si512(entries, _mm512_set1_epi32(kBlockSize - 1));
    const __m512i channel =
        _mm512_srli_epi32(_mm512_and_si512(entries, _mm512_set1_epi32(0xffff)), 6);
    const __m512i at =
        is_per_channel
            ? _mm512_add_epi32(channel, _mm512_mullo_epi32(_mm512_srl_epi32(token, token_shift),
                                                           _mm512_set1_epi32(2 * kMaxRank)))
            : _mm512_add_epi32(token,
                               _mm512_permutexvar_epi32(_mm512_srli_epi32(channel, 4), groups));
    const __m512 values =
        _mm512_castsi512_ps(_mm512_and_si512(entries, _mm512_set1_epi32(kBf16Mask)));
    const __m512 codes = _mm512_div_ps(_mm512_sub_ps(values, _mm512_i32gather_ps(at, middles, 4)),
                                       _mm512_i32gather_ps(at, scales, 4));
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i pair = _mm512_srli_epi32(kIsKey ? channel : token, 1);
    const __m512i place = _mm512_add_epi32(
        _mm512_mullo_epi32(pair, _mm512_set1_epi32(kIsKey ? kBlockSize : side.rank)),
        kIsKey ? token : channel);
    alignas(64) int32_t places[kLanes];
    _mm512_store_si512(places, _mm512_add_epi32(_mm512_slli_epi32(place, 1),
                                                _mm512_and_si512(kIsKey ? channel : token, one)));
    alignas(32) uint16_t numbers[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(codes)));
    for (int j = 0; j < n; ++j) lines[places[j]] = numbers[j];
  }
}

// All lines of a side into scratch, exact entries among them.
template <bool kIsKey>
void DecodeSide(const Work& w) {
  const PackedSideView& side = kIsKey ? w.run.k : w.run.v;
  const auto decode = [&](auto bits, const CodeSegment& segment,
                          const CodeTables& tables) KVL_PART {
    const std::byte *codes = w.block + segment.codes, *next = w.next + segment.codes;
    if constexpr (kIsKey) {
      DecodeKeys<bits.value>(codes, next, tables, segment.n_channels,
                             w.s->lines + kBlockSize * segment.first);
    } else {
      DecodeValues<bits.value>(codes, next, tables, segment.n_channels, side.rank,
                               w.s->lines + 2 * segment.first);
    }
  };
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    WithSegmentBits(segment.bits, [&](auto bits) KVL_PART {
      decode(bits, segment, LoadCodeTables<bits.value>(segment.table));
    });
  }
  if (side.n_segments > 0) return;
  WithBits(side.bits, [&](auto bits) KVL_PART {
    decode(bits, {side.bits, 0, side.rank, side.codes},
           MakeCodeTables<bits.value>(side.is_symmetric));
  });
  PutExactEntries<kIsKey>(side, w.block_idx, kIsKey ? w.key_places : w.value_places,
                          kIsKey ? w.s->key_scales : w.s->value_scales, w.s->lines);
}

}  // namespace
}  // namespace kvlathe
