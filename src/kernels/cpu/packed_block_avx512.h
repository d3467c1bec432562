// A packed block under a panel of rows: the scratch of the AVX-512 kernel, scales and factors
// turned to floats, sides decoded with their exact entries. For files compiled with AVX-512 flags
// only; everything has internal linkage.
#pragma once

#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/attend_packed_avx512.h"
#include "kernels/cpu/packed_codes_avx512.h"

namespace kvlathe {
namespace {

constexpr int kTileRows = 4;
constexpr int kBlockLines = kBlockSize / kLanes;
constexpr int kMaxRank = 256;
constexpr int kMaxGroups = kMaxRank / 16;
constexpr int kMaxLowrank = 8;

struct PackedScratch {
  alignas(64) uint16_t lines[kBlockSize * kMaxRank];  // a decoded side: K, then V
  // q * scales of K per channel: of a row, or of (group of tokens in the block, row of the tile).
  alignas(64) uint16_t q[kPackedPanelRows][kMaxRank];
  alignas(64) float q_minima[kPackedPanelRows][kBlockLines];  // dots with minima, as q
  alignas(64) float q_sums[kPackedPanelRows][kMaxGroups];     // of q over groups of channels
  alignas(64) float q_basis[kPackedPanelRows][kMaxLowrank];   // dots with B of K
  alignas(64) float probs[kPackedPanelRows][kBlockSize];
  alignas(64) uint16_t weights[kMaxGroups][kTileRows][kBlockSize];  // probabilities * scales
  // Scales in CodeUnits and middles (the values of number 0 in a line) of the block at work: K per
  // channel [groups of tokens][2][kMaxRank]; per token [groups of channels][2][kBlockSize].
  alignas(64) float key_scales[kMaxGroups * 2 * kBlockSize];
  alignas(64) float value_scales[kMaxGroups * 2 * kBlockSize];
  alignas(64) float key_factor[kMaxLowrank][kBlockSize];
  alignas(64) float value_factor[kMaxLowrank][kBlockSize];
  // Sums over tokens, 16 partial sums each: of probability * middle per group of channels since the
  // panel began, and of probability * A since the run began.
  alignas(64) float middles[kPackedPanelRows][kMaxGroups][kLanes];
  alignas(64) float factors[kPackedPanelRows][kMaxLowrank][kLanes];
};
static_assert(sizeof(PackedScratch) <= kPackedScratchBytes);
static_assert(4 * 2 * kMaxRank <= kMaxGroups * 2 * kBlockSize);

// A panel at a block.
struct Work {
  const PackedPanel* panel;
  PackedScratch* s;
  PackedRunView run;
  const std::byte* block;
  const std::byte* next;  // the block to fetch meanwhile; behind the last one, `block` itself
  int block_idx;          // in the run
  int first_entry;
  int first_row;     // of the panel, that sees anything of the block
  int token_groups;  // of scales of K per channel in a block: 1, 2 or 4
  bool is_key_decoded;
  bool is_value_decoded;
};

KVL_INLINE __m512 LoadHalf(const F16* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

KVL_INLINE __m512 LoadBf16(const uint16_t* from) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

KVL_INLINE void PrefetchBytes(const std::byte* from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64) PrefetchLine(from + i);
}

// 16 stored scales and minima to scales in CodeUnits and middles.
KVL_INLINE void ConvertScales(const PackedSideView& side, const F16* scales, const F16* minima,
                              float* to, float* middles_to) {
  const __m512 scale = LoadHalf(scales);
  __m512 middle = _mm512_setzero_ps();
  if (!side.is_symmetric) {
    middle = _mm512_fmadd_ps(scale, _mm512_set1_ps(CodeCentre(side.bits, false)), LoadHalf(minima));
  }
  _mm512_store_ps(to, _mm512_mul_ps(scale, _mm512_set1_ps(1 / CodeUnit(side.bits))));
  _mm512_store_ps(middles_to, middle);
}

inline void ConvertChannelScales(const PackedSideView& side, const F16* from, float* to) {
  for (int r = 0; r < side.rank; r += kLanes) {
    ConvertScales(side, from + r, from + side.rank + r, to + r, to + kMaxRank + r);
  }
}

// Of all groups of a block.
inline void ConvertTokenScales(const Work& w, const PackedSideView& side, float* to) {
  const int parts = side.is_symmetric ? 1 : 2;
  const F16* from = side.shared_scales != nullptr
                        ? side.shared_scales + int64_t{parts} * kBlockSize * w.block_idx
                        : reinterpret_cast<const F16*>(w.block + side.scales);
  for (int group = 0; group < side.n_groups; ++group) {
    for (int t = 0; t < kBlockSize; t += kLanes) {
      ConvertScales(side, from + t, from + kBlockSize + t, to + t, to + kBlockSize + t);
    }
    from += parts * kBlockSize;
    to += 2 * kBlockSize;
  }
}

inline void ConvertFactor(const Work& w, const PackedSideView& side, float (*to)[kBlockSize]) {
  const F16* from = reinterpret_cast<const F16*>(w.block + side.factor);
  for (int i = 0; i < w.run.lowrank; ++i) {
    for (int t = 0; t < kBlockSize; t += kLanes) {
      _mm512_store_ps(to[i] + t, LoadHalf(from + i * kBlockSize + t));
    }
  }
}

// --- Exact entries in decoded lines. ---

// Replaces codes by what the scales of their places turn back into the exact values, 16 entries at
// a time. `scales` is key_scales or value_scales of the scratch.
template <bool kIsKey>
void PutExactEntries(const PackedSideView& side, int block_idx, const float* scales,
                     int token_groups, uint16_t* lines) {
  const SparseRange range = SparseEntriesOf(side, block_idx);
  const int n_entries = static_cast<int>(range.end - range.begin);
  // The group of 16 channels, as an offset.
  alignas(64) int32_t group_offsets[kLanes];
  for (int i = 0; i < kLanes; ++i) group_offsets[i] = i * 16 / side.group * 2 * kBlockSize;
  const __m512i groups = _mm512_load_si512(group_offsets);
  const int group_tokens = kBlockSize / token_groups;  // a power of two
  const __m128i token_shift = _mm_cvtsi32_si128(__builtin_ctz(group_tokens));
  const bool is_per_channel = side.is_per_channel;
  const float* middles = scales + (is_per_channel ? kMaxRank : kBlockSize);
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
    const __m512 values = _mm512_castsi512_ps(
        _mm512_and_si512(entries, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
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
  WithBits(side.bits, [&](auto bits) {
    const auto decode = kIsKey ? DecodeKeys<bits.value> : DecodeValues<bits.value>;
    decode(w.block + side.codes, w.next + side.codes, side.is_symmetric, side.rank, w.s->lines);
  });
  PutExactEntries<kIsKey>(side, w.block_idx, kIsKey ? w.s->key_scales : w.s->value_scales,
                          kIsKey ? w.token_groups : 1, w.s->lines);
}

}  // namespace
}  // namespace kvlathe
