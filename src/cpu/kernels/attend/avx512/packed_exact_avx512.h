// Adds the exact entries of a packed block to the scores of their tokens and to the channels of the
// outputs, 16 tokens or channels and two entries of each at a time. Where many rows share a block,
// the entries are added to its decoded lines instead. Only files compiled with AVX-512 flags may
// include this, and everything has internal linkage.
#pragma once

#include "cpu/kernels/attend/avx512/packed_block_avx512.h"
#include "cpu/kernels/attend/exact_entries.h"

namespace kvlathe {
namespace {

inline ScalePlaces PlacesOfScales(const PackedSideView& side, int token_groups) {
  ScalePlaces places = {.token_shift = __builtin_ctz(kBlockSize / token_groups)};
  for (int i = 0; i < kMaxGroups; ++i) {
    places.group_offsets[i] = side.is_per_channel ? 0 : i * 16 / side.group * 2 * kBlockSize;
  }
  return places;
}

// --- Rounds of entries. ---

// Where the rest of the entries of a block begins.
struct ExactCursor {
  explicit ExactCursor(const ExactEntries& entries)
      : differences(entries.differences), places(entries.places) {}

  const uint16_t* differences;
  const uint8_t* places;
};

// Loads the counts of 16 lanes from `lane` on, each into both words of a lane of the vector.
KVL_INLINE __m512i LoadCounts(const LaneCounts& counts, int lane) {
  __m512i wide;
  if (counts.is_wide) {
    wide = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(counts.counts + 2 * lane)));
  } else {
    wide = _mm512_cvtepu8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(counts.counts + lane)));
  }
  return _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
}

// Adds the differences of 16 lanes, which have `counts` entries, times the numbers of their places:
// number_of(row, places) gives the words at 32 places. Differences are loaded before they are
// expanded, because some processors expand from memory far more slowly than from registers.
template <int kRows, typename NumberOf>
KVL_INLINE void AddExactRounds(const __m512i& counts, const NumberOf& number_of, ExactCursor* at,
                               __m512 (&sums)[kRows]) {
  __m512i entry = _mm512_set1_epi32(0x10000);  // 0 and 1, of a round the one and the other
  for (;;) {
    const __mmask32 mask = _mm512_cmpgt_epu16_mask(counts, entry);
    if (mask == 0) return;
    const int n = __builtin_popcount(mask);
    const auto loaded = static_cast<__mmask32>((uint64_t{1} << n) - 1);
    const __m512i differences =
        _mm512_maskz_expand_epi16(mask, _mm512_maskz_loadu_epi16(loaded, at->differences));
    const __m512i places = _mm512_cvtepu8_epi16(
        _mm256_maskz_expand_epi8(mask, _mm256_maskz_loadu_epi8(loaded, at->places)));
    Unroll<kRows>([&](auto i) KVL_PART {
      sums[i.value] = _mm512_dpbf16_ps(sums[i.value], reinterpret_cast<__m512bh>(differences),
                                       reinterpret_cast<__m512bh>(number_of(i, places)));
    });
    at->differences += n;
    at->places += n;
    entry = _mm512_add_epi16(entry, _mm512_set1_epi16(2));
  }
}

// Looks up words of a row by their place. A row has up to 64 * kPairs words.
template <int kPairs>
struct WordTable {
  __m512i words[2 * kPairs];

  KVL_INLINE __m512i At(const __m512i& places) const {
    __m512i found = _mm512_permutex2var_epi16(words[0], places, words[1]);
    if constexpr (kPairs > 1) {
      const __m512i others = _mm512_permutex2var_epi16(words[2], places, words[3]);
      found = _mm512_mask_mov_epi16(found, _mm512_test_epi16_mask(places, _mm512_set1_epi16(64)),
                                    others);
    }
    if constexpr (kPairs > 2) {
      const __m512i third = _mm512_permutex2var_epi16(words[4], places, words[5]);
      const __m512i fourth = _mm512_permutex2var_epi16(words[6], places, words[7]);
      const __m512i others = _mm512_mask_mov_epi16(
          third, _mm512_test_epi16_mask(places, _mm512_set1_epi16(64)), fourth);
      found = _mm512_mask_mov_epi16(found, _mm512_test_epi16_mask(places, _mm512_set1_epi16(128)),
                                    others);
    }
    return found;
  }
};

// Writes what exact entries of K add to the scores of rows [row, row + kRows) to
// w.s->exact_scores.
template <int kRows, int kPairs>
KVL_FLATTEN void AddExactScores(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  const PackedSideView& side = w.run.k;
  const LaneCounts counts = CountsOf<true>(side, w.block);
  ExactCursor at(ExactEntriesOf(side, w.block_idx));
  WordTable<kPairs> q[kRows];
  Unroll<kRows>([&](auto i) KVL_PART {
    const auto* from =
        static_cast<const uint16_t*>(p.q) + (w.panel->first_row + row + i.value) * p.q_stride;
    Unroll<2 * kPairs>([&](auto j) KVL_PART {
      const int n = Min(32, Max(0, side.rank - 32 * j.value));
      q[i.value].words[j.value] = _mm512_maskz_loadu_epi16(
          static_cast<__mmask32>((uint64_t{1} << n) - 1), from + 32 * j.value);
    });
  });
  for (int t = 0; t < kBlockSize; t += kExactLanes) {
    __m512 sums[kRows];
    Unroll<kRows>([&](auto i) KVL_PART { sums[i.value] = _mm512_setzero_ps(); });
    AddExactRounds<kRows>(
        LoadCounts(counts, t),
        [&](auto i, const __m512i& places) KVL_PART { return q[i.value].At(places); }, &at, sums);
    Unroll<kRows>([&](auto i) KVL_PART {
      _mm512_store_ps(w.s->exact_scores[row + i.value] + t, sums[i.value]);
    });
  }
}

template <int kRows>
void AddExactScores(const Work& w, int row) {
  if (w.run.k.rank <= 64) return AddExactScores<kRows, 1>(w, row);
  if (w.run.k.rank <= 128) return AddExactScores<kRows, 2>(w, row);
  // The words of one row fill the registers.
  for (int i = 0; i < kRows; ++i) AddExactScores<1, 4>(w, row + i);
}

// Adds the exact entries of V to o of rows [row, row + kRows).
template <int kRows>
KVL_FLATTEN void AddExactValues(const Work& w, int row) {
  const AttendParams& p = *w.panel->p;
  const PackedSideView& side = w.run.v;
  const LaneCounts counts = CountsOf<false>(side, w.block);
  ExactCursor at(ExactEntriesOf(side, w.block_idx));
  WordTable<1> probs[kRows];
  Unroll<kRows>([&](auto i) KVL_PART {
    Unroll<2>([&](auto j) KVL_PART {
      const float* from = w.s->probs[row + i.value] + 2 * kLanes * j.value;
      probs[i.value].words[j.value] = reinterpret_cast<__m512i>(
          _mm512_cvtne2ps_pbh(_mm512_load_ps(from + kLanes), _mm512_load_ps(from)));
    });
  });
  float* o = p.o + (w.panel->first_row + row) * p.o_stride;
  for (int r = 0; r < side.rank; r += kExactLanes) {
    __m512 sums[kRows];
    Unroll<kRows>([&](auto i)
                      KVL_PART { sums[i.value] = _mm512_loadu_ps(o + i.value * p.o_stride + r); });
    AddExactRounds<kRows>(
        LoadCounts(counts, r),
        [&](auto i, const __m512i& places) KVL_PART { return probs[i.value].At(places); }, &at,
        sums);
    Unroll<kRows>([&](auto i)
                      KVL_PART { _mm512_storeu_ps(o + i.value * p.o_stride + r, sums[i.value]); });
  }
}

// --- Decoded lines. ---

// The words through which the numbers of entries pass on their way into a line.
struct LineWords {
  alignas(64) int32_t places[kLanes];
  alignas(32) uint16_t numbers[kLanes];
};

// Adds exact entries, divided by the scales of their places, to decoded codes, 16 entries at a
// time. `scales` is key_scales or value_scales of the scratch.
template <bool kIsKey>
void PutExactEntries(const Work& w, const PackedSideView& side, const ScalePlaces& scale_places,
                     const float* scales, uint16_t* lines) {
  if (side.exact.ends == nullptr) return;
  const ExactEntries entries = ExactEntriesOf(side, w.block_idx);
  const __m512i groups = _mm512_loadu_si512(scale_places.group_offsets);
  const __m128i token_shift = _mm_cvtsi32_si128(scale_places.token_shift);
  const __m512i one = _mm512_set1_epi32(1);
  const int pair_step = kIsKey ? kBlockSize : side.rank;
  ExactLanes lanes;
  ListLanes(CountsOf<kIsKey>(side, w.block), &lanes);
  for (int i = 0; i < lanes.n; i += kLanes) {
    const int n = Min(kLanes, lanes.n - i);
    const auto mask = static_cast<__mmask16>((1u << n) - 1);
    const __m512i lane = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, lanes.lanes + i));
    const __m512i place = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, entries.places + i));
    const __m512i token = kIsKey ? lane : place, channel = kIsKey ? place : lane;
    const __m512i scale_at =
        side.is_per_channel
            ? _mm512_add_epi32(channel, _mm512_mullo_epi32(_mm512_srl_epi32(token, token_shift),
                                                           _mm512_set1_epi32(2 * kMaxPackedRank)))
            : _mm512_add_epi32(token,
                               _mm512_permutexvar_epi32(_mm512_srli_epi32(channel, 4), groups));
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, entries.differences + i));
    const __m512 differences = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    // Pairs of channels of K and of tokens of V lie side by side: those are the places.
    const __m512i line_at = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_srli_epi32(place, 1), _mm512_set1_epi32(pair_step)), lane);
    LineWords at;
    _mm512_store_si512(
        at.places, _mm512_add_epi32(_mm512_slli_epi32(line_at, 1), _mm512_and_si512(place, one)));
    for (int j = 0; j < kLanes; ++j) at.numbers[j] = lines[at.places[j]];
    const __m512 numbers = _mm512_add_ps(
        LoadBf16(at.numbers), _mm512_div_ps(differences, _mm512_i32gather_ps(scale_at, scales, 4)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(at.numbers),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers)));
    for (int j = 0; j < n; ++j) lines[at.places[j]] = at.numbers[j];
  }
}

// Decodes all lines of a side into scratch, exact entries included.
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
    decode(bits, {side.bits, 0, side.rank, side.codes}, SideTables<bits.value>(side));
  });
  PutExactEntries<kIsKey>(w, side, kIsKey ? w.key_places : w.value_places,
                          kIsKey ? w.s->key_scales : w.s->value_scales, w.s->lines);
}

}  // namespace
}  // namespace kvlathe
