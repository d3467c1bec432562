// What the AVX-512 kernel keeps while a panel of rows is at a packed block: its scratch, and scales
// and factors as floats. Only files compiled with AVX-512 flags may include this, and everything
// has internal linkage.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/avx512/attend_packed_avx512.h"
#include "cpu/kernels/attend/avx512/packed_codes_avx512.h"

namespace kvlathe {
namespace {

// Marks functions whose sums live in registers: every lambda in them must become part of them.
#define KVL_FLATTEN __attribute__((flatten))

constexpr int kTileRows = 4;
constexpr int kBlockLines = kBlockSize / kLanes;
constexpr int kMaxRank = kMaxRowRank;
constexpr int kMaxGroups = kMaxPackedRank / 16;
constexpr int kMaxFetches = 128;
constexpr int kRunsAhead = 2;
// From this number of rows on, decoding once costs less than in each tile of 4.
constexpr int kMinDecodedRows = 9;

// The lines to fetch. Those before `next` were asked for.
struct FetchList {
  int next, n;
  const std::byte* lines[kMaxFetches + 8];  // written eight at a time

  // Scores ask for a line with each pair of dimensions, and values for those that are left then,
  // which is the case at the start of a run.
  KVL_INLINE void PrefetchNext() {
    if (next < n) PrefetchLine(lines[next++]);
  }
};

// The most factors of the low-rank residual that all rows of a panel have together (PanelRowsOf).
constexpr int kPanelFactors = kPackedPanelRows * kFactorsOfFullPanel;

struct PackedScratch {
  alignas(64) uint16_t lines[kBlockSize * kMaxRank];  // a decoded side: K, then V
  // q * scales of K per channel: of a row, or of (group of tokens in the block, row of the tile).
  alignas(64) uint16_t q[kPackedPanelRows][kMaxRank];
  alignas(64) float q_minima[kPackedPanelRows][kBlockLines];  // dots with minima, as q
  alignas(64) float q_sums[kPackedPanelRows][kMaxGroups];     // of q over groups of channels
  alignas(64) float q_basis[kPanelFactors];                   // dots with B of K: FactorOf
  alignas(
      64) float exact_scores[kMinDecodedRows - 1][kBlockSize];  // what exact entries add to them
  alignas(64) float probs[kPackedPanelRows][kBlockSize];
  alignas(64) uint16_t weights[kMaxGroups][kTileRows][kBlockSize];  // probabilities * scales
  // The scales, in CodeUnits, and the middles (the values of number 0 in a line) of the block at
  // work. K per channel has [groups of tokens][2][kMaxPackedRank], and what is per token has
  // [groups of channels][2][kBlockSize].
  alignas(64) float key_scales[kMaxGroups * 2 * kBlockSize];
  alignas(64) float value_scales[kMaxGroups * 2 * kBlockSize];
  alignas(64) float key_factor[kMaxPackedLowrank][kBlockSize];
  alignas(64) float value_factor[kMaxPackedLowrank][kBlockSize];
  // Sums over tokens, each as 16 partial sums: `middles` of probability * middle per group of
  // channels since the panel began, and `factors` of probability * A since the run began.
  alignas(64) float middles[kPackedPanelRows][kMaxGroups][kLanes];
  alignas(64) float factors[kPanelFactors][kLanes];  // FactorOf
  FetchList fetches;
};
static_assert(sizeof(PackedScratch) <= kPackedScratchBytes);
static_assert(4 * 2 * kMaxPackedRank <= kMaxGroups * 2 * kBlockSize);

// Where the scale of an entry lies among those of its side: key_scales or value_scales of the
// scratch.
struct ScalePlaces {
  int32_t group_offsets[kMaxGroups];  // of scales per token, by 16 channels
  int token_shift;                    // of scales per channel: log2 of the tokens of a group
};

// A panel at a block.
struct Work {
  const PackedPanel* panel;
  PackedScratch* s;
  PackedRunView run;
  PackedRunView ahead[kRunsAhead];  // the n_ahead runs that follow
  int n_ahead;
  const std::byte* block;
  const std::byte* next;  // the block to fetch meanwhile; behind the last one, `block` itself
  int block_idx;          // in the run
  int first_entry;
  int first_row;                         // the first of the panel that sees some of the block
  int token_groups;                      // groups of scales of K per channel: 1, 2 or 4
  bool is_decoded;                       // both sides, with their exact entries
  ScalePlaces key_places, value_places;  // of exact entries, where they go into decoded lines

  // Where what is kept of a row and factor f lies. It is ordered by row, and then by the factors of
  // the run.
  int FactorOf(int row, int f) const { return row * run.lowrank + f; }
  // Whether the exact entries of a side are added to the sums of tiles.
  bool has_exact_sums(const PackedSideView& side) const {
    return side.exact.ends != nullptr && !is_decoded;
  }
};

KVL_INLINE __m512 LoadHalf(const F16* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

KVL_INLINE __m512 LoadBf16(const uint16_t* from) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Converts 16 stored scales and minima to scales in CodeUnits and middles.
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

// The look-up tables of a side: the numbers of its own table, or those of even steps.
template <int kBits>
KVL_INLINE CodeTables SideTables(const PackedSideView& side) {
  if constexpr (kBits >= 2 && kBits <= 4) {
    if (side.table != nullptr) return LoadCodeTables<kBits>(side.table);
  }
  return MakeCodeTables<kBits>(side.is_symmetric);
}

// Converts the scales of all groups of a block where the side has a table.
inline void ConvertTableScales(const Work& w, const PackedSideView& side, float* to) {
  const std::byte* from = w.block + side.scales;
  const int n_bytes = side.has_norms ? 2 : 1;
  const __m512 unit = _mm512_set1_ps(side.table_unit);
  for (int group = 0; group < side.n_groups; ++group, to += 2 * kBlockSize) {
    for (int t = 0; t < kBlockSize; t += kLanes, from += n_bytes * kLanes) {
      const __m512i bytes =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m512 scale = side.has_norms ? LoadHalf(reinterpret_cast<const F16*>(from))
                                          : _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 23));
      _mm512_store_ps(to + t, _mm512_mul_ps(scale, unit));
      _mm512_store_ps(to + kBlockSize + t, _mm512_setzero_ps());
    }
  }
}

inline void ConvertChannelScales(const PackedSideView& side, const F16* from, float* to) {
  for (int r = 0; r < side.rank; r += kLanes) {
    ConvertScales(side, from + r, from + side.rank + r, to + r, to + kMaxPackedRank + r);
  }
}

// Converts the scales of all groups of a block where they are per token.
inline void ConvertTokenScales(const Work& w, const PackedSideView& side, float* to) {
  if (side.table != nullptr) return ConvertTableScales(w, side, to);
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

}  // namespace
}  // namespace kvlathe
