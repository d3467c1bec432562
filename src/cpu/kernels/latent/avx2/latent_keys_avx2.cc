// Latents that are codes of split bits stay whole numbers of 16 bits (line_reader_lanes.h) and meet
// the way back, in 16 bits too, in exact integer dots: twice as many at a time as products in F32.
// A tile of four channels of 16 tokens stays in registers until it is turned and rounded.
#include <type_traits>

#include "cpu/kernels/latent/latent_keys_lanes.h"

namespace kvlathe {
namespace {

constexpr int kTileTokens = 2 * kLanes;

// A channel and the next one, [token][2], of eight tokens: 0, 1, 4, 5 and 2, 3, 6, 7, because
// neither interleaving nor packing crosses the halves of a vector.
struct TokenPairs {
  __m256 low, high;
};

KVL_INLINE TokenPairs Interleave(__m256 first, __m256 second) {
  return {_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second)};
}

// What lies in the order of memory.
KVL_INLINE TokenPairs LoadPairs(const float* from) {
  const auto halves = [&](int first) KVL_PART {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + first)),
                                _mm_loadu_ps(from + first + 8), 1);
  };
  return {halves(0), halves(4)};
}

// Bf16 in the lower halves of 32 bits, rounded to nearest even; NaN of arithmetic stays NaN.
KVL_INLINE __m256i RoundedTops(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
}

KVL_INLINE void StoreRounded(uint16_t* to, const TokenPairs& x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_packus_epi32(RoundedTops(x.low), RoundedTops(x.high)));
}

// Real and imaginary part times cos + i sin.
KVL_INLINE void Turn(__m256 cos, __m256 sin, __m256* a, __m256* b) {
  const __m256 x = *a;
  *a = _mm256_fmsub_ps(x, cos, _mm256_mul_ps(*b, sin));
  *b = _mm256_fmadd_ps(*b, cos, _mm256_mul_ps(x, sin));
}

// Channels i, i + 1, i + step and i + step + 1 of kTileTokens tokens from `first` on; the second
// two are what the first turn with. Latents as K of a plain block, in units of `scales`, which
// tokens have.
template <bool kTurns>
KVL_INLINE void KeyTile(const LatentBlock& b, const int16_t* latents, const float* scales, int i,
                        int step, int first, uint16_t* keys) {
  const LatentMapView& map = b.map;
  const int channels[4] = {i, i + 1, i + step, i + step + 1};
  // Two pointers and a distance: more would leave too few registers for addresses.
  const int16_t* weights = map.numbers + int64_t{i} * map.rank;
  const int16_t* partners = map.numbers + int64_t{i + step} * map.rank;
  const int16_t* const end = weights + b.run->k.n_coded;
  const int64_t rank = map.rank;
  IntVec sums[4][2] = {};
  for (latents += 2 * first; weights != end; latents += 2 * kBlockSize) {
    const IntVec low = LoadWords(latents), high = LoadWords(latents + 2 * kLanes);
    const auto add = [&](int row, const int16_t* pair) KVL_PART {
      const IntVec both = BroadcastFour(pair);
      sums[row][0] = AddDots(sums[row][0], low, both);
      sums[row][1] = AddDots(sums[row][1], high, both);
    };
    add(0, weights);
    add(1, weights + rank);
    add(2, partners);
    add(3, partners + rank);
    weights += 2, partners += 2;
  }
  Unroll<2>([&](auto c) KVL_PART {
    Vec rows[4];
    const Vec scale = Load(scales + first + kLanes * c.value);
    Unroll<4>([&](auto r) KVL_PART {
      rows[r.value] =
          Fma(ToFloats(sums[r.value][c.value]), scale * Set1(map.units[channels[r.value]]),
              Set1(map.offset[channels[r.value]]));
    });
    TokenPairs pairs = Interleave(rows[0], rows[1]), second = Interleave(rows[2], rows[3]);
    const int64_t tokens = 2 * (first + kLanes * c.value);
    if constexpr (kTurns) {
      const int64_t angles = int64_t{i % map.key_dim} * kBlockSize + tokens;
      const TokenPairs cos = LoadPairs(b.rotation.cos + angles);
      const TokenPairs sin = LoadPairs(b.rotation.sin + angles);
      Turn(cos.low, sin.low, &pairs.low, &second.low);
      Turn(cos.high, sin.high, &pairs.high, &second.high);
    }
    StoreRounded(keys + int64_t{i} * kBlockSize + tokens, pairs);
    StoreRounded(keys + int64_t{i + step} * kBlockSize + tokens, second);
  });
}

void ReadKeyNumbers(const PackedSideView& side, const std::byte* block, int16_t* to) {
  ForEachVector<true>(side, block, [&](int64_t offset, IntVec numbers) KVL_PART {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + offset), numbers);
  });
}

// What numbers of kUnitNumberStep stand for has no more digits than Bf16.
void ReadValues(const PackedSideView& side, const std::byte* block, uint16_t* to) {
  const Vec step = Set1(kUnitNumberStep);
  ForEachVector<false>(side, block, [&](int64_t offset, IntVec numbers) KVL_PART {
    const __m256i firsts = _mm256_srai_epi32(_mm256_slli_epi32(numbers, 16), 16);
    const Vec low = ToFloats(firsts) * step;
    const Vec high = ToFloats(_mm256_srai_epi32(numbers, 16)) * step;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + offset),
                        _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
                                           _mm256_castps_si256(high), 0xaa));
  });
  ForEachUncoded<false>(side, [&](int64_t offset, int64_t n) KVL_PART {
    __builtin_memset(to + offset, 0, n * sizeof(uint16_t));
  });
}

// Makes rows of values that are in units of the scales of their tokens.
void ScaleValues(const PackedSideView& side, const std::byte* block, uint16_t* values) {
  alignas(64) float scales[kBlockSize];
  ReadUnitScales(side, block, scales);
  for (int pair = 0; pair < kBlockSize / 2; ++pair) {
    const __m256 first = _mm256_set1_ps(scales[2 * pair]);
    const __m256 second = _mm256_set1_ps(scales[2 * pair + 1]);
    for (int r = 0; r < side.rank; r += kLanes, values += 2 * kLanes) {
      auto* const at = reinterpret_cast<__m256i*>(values);
      const __m256i words = _mm256_loadu_si256(at);
      const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
      const __m256 high = _mm256_castsi256_ps(
          _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
      const __m256i upper = _mm256_slli_epi32(RoundedTops(_mm256_mul_ps(high, second)), 16);
      _mm256_storeu_si256(at,
                          _mm256_blend_epi16(RoundedTops(_mm256_mul_ps(low, first)), upper, 0xaa));
    }
  }
}

void ReadCodes(const LatentBlock& b, std::byte* scratch) {
  const int head_dim = b.map.head_dim, half = b.rotation.half;
  auto* const latents = reinterpret_cast<int16_t*>(scratch);
  auto* const keys = reinterpret_cast<uint16_t*>(b.tile);
  uint16_t* const values = keys + int64_t{kBlockSize} * head_dim;
  alignas(64) float scales[kBlockSize];
  for (float& scale : scales) scale = 1;
  ReadKeyNumbers(b.run->k, b.block, latents);
  ReadValues(b.run->v, b.block, values);
  if (b.run->k.has_token_scales) {
    ReadUnitScales(b.run->k, b.block, scales);
    ScaleValues(b.run->v, b.block, values);
  }
  const auto tiles = [&](auto turns, int i, int step) KVL_PART {
    for (int first = 0; first < kBlockSize; first += kTileTokens) {
      KeyTile<turns.value>(b, latents, scales, i, step, first, keys);
    }
  };
  for (int key = 0; key < head_dim; key += b.map.key_dim) {
    const int end = key + b.map.key_dim;
    for (int i = key; i < key + half; i += 2) tiles(std::true_type(), i, half);
    for (int i = key + 2 * half; i < end; i += 4) tiles(std::false_type(), i, 2);
  }
}

}  // namespace

void ReadLatentsAvx2F32(const LatentBlock& block, std::byte* scratch) {
  ReadLatents<float, LaneKernels>(block, scratch);
}
void ReadLatentsAvx2Bf16(const LatentBlock& b, std::byte* scratch) {
  const bool reads_codes = b.map.numbers != nullptr && b.run != nullptr &&
                           b.run->k.n_segments > 0 && b.run->lowrank == 0;
  if (reads_codes) return ReadCodes(b, scratch);
  ReadLatents<uint16_t, LaneKernels>(b, scratch);
}
void ExpandSealedBlockAvx2(const PackedRunView& run, const std::byte* block, int block_idx,
                           float* values) {
  LaneKernels::Expand(run, block, block_idx, values);
}

}  // namespace kvlathe
