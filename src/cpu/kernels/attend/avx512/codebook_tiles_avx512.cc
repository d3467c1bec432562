// Compiled for AVX-512 BF16 and without fused products: a tile has the bits that ExpandPackedBlock
// gives, rounded.
#include "base/check.h"
#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "cpu/kernels/attend/codebook_tiles.h"

namespace kvlathe {
namespace {

// Both numbers of a pair, for every second word each.
KVL_INLINE __m512 SplatPair(const float* pair) {
  double both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm512_castpd_ps(_mm512_set1_pd(both));
}

// A side of a block: lines of 32 words by pairs (codebook.h).
struct Side {
  const std::byte* codes;
  int n_pairs;
  int lines_per_pair;
  const float* scales;
  const float* offsets;
  const float* centroids;
  float* values;
};

// 16 codes, each in the low bits of its word, to elements.
template <int kBits>
KVL_INLINE __m512 Decode(__m512i codes, __m512 centroids, __m512 scale, __m512 offset) {
  // The permutation reads four bits.
  if constexpr (kBits < 4) codes = _mm512_and_si512(codes, _mm512_set1_epi32((1 << kBits) - 1));
  const __m512 centroid = _mm512_permutexvar_ps(codes, centroids);
  return _mm512_add_ps(_mm512_mul_ps(centroid, scale), offset);
}

// One group of lines; line i belongs to pair (first_line + i * step) / lines_per_pair.
template <int kBits>
KVL_INLINE void DecodeGroup(const Side& side, const std::byte* group, int first_line, int step) {
  constexpr int kLowBits = LowBits(kBits);
  const __m512 centroids = _mm512_loadu_ps(side.centroids);
  const __m512i words = _mm512_loadu_si512(group);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
  Unroll<LinesPerGroup(kBits)>([&](auto i) {
    constexpr int kShift = kLowBits * i.value;
    const int line = first_line + i.value * step, pair = line / side.lines_per_pair;
    const __m512 scale = SplatPair(side.scales + 2 * pair);
    const __m512 offset = SplatPair(side.offsets + 2 * pair);
    __m512i codes[2] = {_mm512_srli_epi32(low, kShift), _mm512_srli_epi32(high, kShift)};
    if constexpr (kBits == 3) {
      uint32_t top;
      __builtin_memcpy(&top, group + 64 + 4 * i.value, sizeof(top));
      Unroll<2>([&](auto half) {
        const auto mask = static_cast<__mmask16>(top >> (16 * half.value));
        const __m512i two = _mm512_and_si512(codes[half.value], _mm512_set1_epi32(3));
        codes[half.value] = _mm512_mask_or_epi32(two, mask, two, _mm512_set1_epi32(4));
      });
    }
    Unroll<2>([&](auto half) {
      _mm512_storeu_ps(side.values + 32 * line + 16 * half.value,
                       Decode<kBits>(codes[half.value], centroids, scale, offset));
    });
  });
}

// K: lines in order. V: groups of the same 16 channels of consecutive pairs.
template <int kBits>
void DecodeSide(const Side& side, bool is_key) {
  constexpr int kLines = LinesPerGroup(kBits);
  const std::byte* group = side.codes;
  if (is_key) {
    const int n_lines = side.n_pairs * side.lines_per_pair;
    for (int line = 0; line < n_lines; line += kLines, group += GroupBytes(kBits)) {
      DecodeGroup<kBits>(side, group, line, 1);
    }
    return;
  }
  for (int pair = 0; pair < side.n_pairs; pair += kLines) {
    for (int i = 0; i < side.lines_per_pair; ++i, group += GroupBytes(kBits)) {
      DecodeGroup<kBits>(side, group, pair * side.lines_per_pair + i, side.lines_per_pair);
    }
  }
}

void DecodeSide(int bits, const Side& side, bool is_key) {
  switch (bits) {
    case 2:
      return DecodeSide<2>(side, is_key);
    case 3:
      return DecodeSide<3>(side, is_key);
    default:
      return DecodeSide<4>(side, is_key);
  }
}

void DecodeBlock(const PackedRunView& run, const std::byte* block, int block_idx, float* values) {
  DecodeSide(run.k.bits,
             {.codes = block + run.k.codes,
              .n_pairs = run.k.rank / 2,
              .lines_per_pair = kBlockSize / 16,
              .scales = run.k.model_scales,
              .offsets = run.k.model_scales + run.k.rank,
              .centroids = run.k.centroids,
              .values = values},
             /*is_key=*/true);
  alignas(64) float scales[2 * kBlockSize];
  const F16* from = run.v.shared_scales + int64_t{2} * kBlockSize * block_idx;
  for (int i = 0; i < 2 * kBlockSize; i += kLanes) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_store_ps(scales + i, _mm512_cvtph_ps(half));
  }
  DecodeSide(run.v.bits,
             {.codes = block + run.v.codes,
              .n_pairs = kBlockSize / 2,
              .lines_per_pair = run.v.rank / 16,
              .scales = scales,
              .offsets = scales + kBlockSize,
              .centroids = run.v.centroids,
              .values = values + int64_t{kBlockSize} * run.k.rank},
             /*is_key=*/false);
}

// n numbers of F16 to floats, each of them twice.
void WidenTwice(const F16* from, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) {
    const __m512 x =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(to + 2 * i, _mm512_permutexvar_ps(low, x));
    _mm512_storeu_ps(to + 2 * i + kLanes, _mm512_permutexvar_ps(high, x));
  }
}

// Adds A B^T to a side of a block, one column after the other. A line has pairs of channels (K) or
// of tokens (V), whose factors are broadcast as a pair, times each of the others twice.
void AddFactors(const PackedSideView& side, int lowrank, const std::byte* block, bool is_key,
                float* values) {
  const auto* const a = reinterpret_cast<const F16*>(block + side.factor);
  alignas(64) float of_channels[2 * kMaxPackedRank], of_tokens[2 * kBlockSize];
  const float* const pairs = is_key ? of_channels : of_tokens;
  const float* const others = is_key ? of_tokens : of_channels;
  const int n_pairs = (is_key ? side.rank : kBlockSize) / 2;
  const int n_words = 2 * (is_key ? kBlockSize : side.rank);
  for (int f = 0; f < lowrank; ++f) {
    WidenTwice(a + f * kBlockSize, kBlockSize, of_tokens);
    WidenTwice(side.basis + f * side.rank, side.rank, of_channels);
    float* to = values;
    for (int pair = 0; pair < n_pairs; ++pair, to += n_words) {
      const float both[2] = {pairs[4 * pair], pairs[4 * pair + 2]};
      const __m512 factor = SplatPair(both);
      for (int i = 0; i < n_words; i += kLanes) {
        const __m512 product = _mm512_mul_ps(factor, _mm512_load_ps(others + i));
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), product));
      }
    }
  }
}

// As TurnKeys.
void Turn(const KeyRotation& rotation, float* keys) {
  const int64_t n = int64_t{rotation.half} * kBlockSize;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m512 c = _mm512_loadu_ps(rotation.cos + i), s = _mm512_loadu_ps(rotation.sin + i);
    const __m512 a = _mm512_loadu_ps(keys + i), b = _mm512_loadu_ps(keys + n + i);
    _mm512_storeu_ps(keys + i, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
    _mm512_storeu_ps(keys + n + i, _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s)));
  }
}

void Round(const float* from, int64_t n, Bf16* to) {
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    const __m512bh both =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + kLanes), _mm512_loadu_ps(from + i));
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(both));
  }
}

}  // namespace

CodebookTiles::CodebookTiles(const AttendParams& params, std::byte* scratch)
    : params_(params), scratch_(scratch) {
  KVL_DCHECK(params.shape.row_type == DType::kBf16);
}

const std::byte* CodebookTiles::Read(int block) {
  const PackedRun* before = run_;
  run_ = FindRun(*params_.packed, block, &run_idx_);
  if (run_ == nullptr) return params_.blocks[block];
  if (run_ != before) view_ = ViewRun(params_, *run_);
  const int64_t n_elements = int64_t{kBlockSize} * (params_.shape.rank_k + params_.shape.rank_v);
  auto* const tile = reinterpret_cast<Bf16*>(scratch_);
  auto* const values = reinterpret_cast<float*>(tile + n_elements);
  const int block_idx = block - run_->first_block;
  DecodeBlock(view_, params_.blocks[block], block_idx, values);
  AddExactEntries(view_, params_.blocks[block], block_idx, values);
  AddFactors(view_.k, view_.lowrank, params_.blocks[block], /*is_key=*/true, values);
  AddFactors(view_.v, view_.lowrank, params_.blocks[block], /*is_key=*/false,
             values + int64_t{kBlockSize} * view_.k.rank);
  if (view_.rotation.half > 0) Turn(view_.rotation.From(block_idx), values);
  Round(values, n_elements, tile);
  return scratch_;
}

}  // namespace kvlathe
