// Keys from Bf16 latents by BF16 dots: a tile of four channels of all tokens of a block stays in
// registers until it is turned and rounded, so a key is never in memory before RoPE.
#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "cpu/kernels/attend/avx512/packed_codes_avx512.h"
#include "cpu/kernels/latent/avx512/key_tiles_avx512.h"
#include "cpu/kernels/latent/avx512/latent_bytes_avx512.h"

namespace kvlathe {
namespace {

constexpr int kCols = kBlockSize / kLanes;  // vectors of tokens

// Channels i, i + 1, i + step and i + step + 1; the second two are what the first turn with. Where
// kIsScaled, latents are in units of the scales of their tokens.
template <bool kTurns, bool kIsScaled>
KVL_INLINE void KeyTile(const LatentBlock& b, const uint16_t* latents, const float* scales, int i,
                        int step, uint16_t* keys) {
  const int rank = b.shape.rank_k, n_read = LatentsToRead(b);
  const auto* columns = static_cast<const uint16_t*>(b.map.columns);
  const int channels[4] = {i, i + 1, i + step, i + step + 1};
  __m512 sums[4][kCols];
  Unroll<4>([&](auto r) KVL_PART {
    Unroll<kCols>([&](auto c) KVL_PART {
      sums[r.value][c.value] = _mm512_set1_ps(kIsScaled ? 0 : b.map.offset[channels[r.value]]);
    });
  });
  const uint16_t* at[4];
  Unroll<4>([&](auto r) KVL_PART { at[r.value] = columns + int64_t{channels[r.value]} * rank; });
  for (int p = 0; p < n_read; p += 2, latents += 2 * kBlockSize) {
    __m512bh lines[kCols];
    Unroll<kCols>([&](auto c) KVL_PART { lines[c.value] = LoadLine(latents + 32 * c.value); });
    Unroll<4>([&](auto r) KVL_PART {
      const __m512bh weight = BroadcastPair(at[r.value] + p);
      Unroll<kCols>([&](auto c) KVL_PART {
        sums[r.value][c.value] = _mm512_dpbf16_ps(sums[r.value][c.value], lines[c.value], weight);
      });
    });
  }
  Unroll<kCols>([&](auto c) KVL_PART {
    if constexpr (kIsScaled) {
      const __m512 scale = _mm512_load_ps(scales + kLanes * c.value);
      Unroll<4>([&](auto r) KVL_PART {
        const __m512 offset = _mm512_set1_ps(b.map.offset[channels[r.value]]);
        sums[r.value][c.value] = _mm512_fmadd_ps(sums[r.value][c.value], scale, offset);
      });
    }
    StoreKeys<kTurns>(b, {sums[0][c.value], sums[1][c.value], sums[2][c.value], sums[3][c.value]},
                      i, step, kLanes * c.value, keys);
  });
}

void RoundAll(const float* from, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    StoreRounded(to + i, {_mm512_loadu_ps(from + i), _mm512_loadu_ps(from + i + kLanes)});
  }
}

// Decoded lines of 8 bits are (code - 128) 2^24 in Bf16, and stand for (code - 128) / 16: the
// exponent falls by 28, but for 0.
void ScaleByteLine(uint16_t* line) {
  const __m512i words = _mm512_load_si512(line);
  const __mmask32 is_not_0 = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x7fff));
  _mm512_store_si512(line,
                     _mm512_mask_sub_epi16(words, is_not_0, words, _mm512_set1_epi16(28 << 7)));
}

// What codes of split bits stand for, all of it exact in Bf16, in the order of a plain block.
template <bool kIsKey>
void ReadSegments(const PackedSideView& side, const std::byte* block, uint16_t* lines) {
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& s = side.segments[i];
    uint16_t* const to = lines + (kIsKey ? kBlockSize : 2) * s.first;
    const std::byte* const codes = block + s.codes;
    WithSegmentBits(s.bits, [&](auto bits) KVL_PART {
      const CodeTables tables = LoadCodeTables<bits.value>(s.table);
      if constexpr (kIsKey) {
        DecodeKeys<bits.value>(codes, codes, tables, s.n_channels, to);
      } else {
        DecodeValues<bits.value>(codes, codes, tables, s.n_channels, side.rank, to);
      }
    });
    if (s.bits != 8) continue;
    // Rows of words: a pair of channels of all tokens, or a pair of tokens of these channels.
    const int n_rows = kIsKey ? s.n_channels / 2 : kBlockSize / 2;
    const int n_words = 2 * (kIsKey ? kBlockSize : s.n_channels);
    const int step = 2 * (kIsKey ? kBlockSize : side.rank);
    for (int row = 0; row < n_rows; ++row) {
      for (int w = 0; w < n_words; w += 32) ScaleByteLine(to + row * step + w);
    }
  }
  if constexpr (kIsKey) return;  // latents without codes are never read
  ForEachUncoded<false>(side, [&](int64_t offset, int64_t n) KVL_PART {
    __builtin_memset(lines + offset, 0, n * sizeof(uint16_t));
  });
}

// Reads the scales of a side's tokens, as floats.
void ReadTokenScales(const PackedSideView& side, const std::byte* block, float* scales) {
  for (int t = 0; t < kBlockSize; t += kLanes) {
    _mm512_store_ps(scales + t, LoadUnitScales(block + side.scales + t));
  }
}

// Makes rows of values that are in units of the scales of their tokens.
void ScaleValues(const float* scales, int rank, uint16_t* values) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int pair = 0; pair < kBlockSize / 2; ++pair) {
    const __m512 first = _mm512_set1_ps(scales[2 * pair]);
    const __m512 second = _mm512_set1_ps(scales[2 * pair + 1]);
    for (int r = 0; r < rank; r += kLanes, values += 2 * kLanes) {
      const __m512i words = _mm512_loadu_si512(values);
      const __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
      const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(words, upper));
      StoreRounded(values, Interleave(_mm512_mul_ps(low, first), _mm512_mul_ps(high, second)));
    }
  }
}

template <bool kIsScaled>
void ReadKeys(const LatentBlock& b, const uint16_t* latents, const float* scales, uint16_t* keys) {
  ForEachTile(b, [&](auto turns, int i, int step) KVL_PART {
    KeyTile<turns.value != 0, kIsScaled>(b, latents, scales, i, step, keys);
  });
}

// Reads a sealed block that holds nothing but codes of split bits and perhaps scales of tokens.
void ReadUnits(const LatentBlock& b, uint16_t* latents, uint16_t* keys, uint16_t* values) {
  const PackedSideView &k = b.run->k, &v = b.run->v;
  alignas(64) float scales[kBlockSize];
  ReadSegments<false>(v, b.block, values);
  if (k.has_token_scales) {
    ReadTokenScales(v, b.block, scales);
    ScaleValues(scales, v.rank, values);
    ReadTokenScales(k, b.block, scales);
  }
  if (const LatentBytes* bytes = FindBytes(b.map, k); bytes != nullptr) {
    return ReadKeysOfBytes(b, *bytes, k.has_token_scales ? scales : nullptr,
                           reinterpret_cast<uint8_t*>(latents), keys);
  }
  ReadSegments<true>(k, b.block, latents);
  if (!k.has_token_scales) return ReadKeys<false>(b, latents, nullptr, keys);
  ReadKeys<true>(b, latents, scales, keys);
}

}  // namespace

void ReadLatentsAvx512Bf16(const LatentBlock& b, std::byte* scratch) {
  const int64_t n_latents = int64_t{kBlockSize} * b.shape.rank_k;
  const int64_t n_values = int64_t{kBlockSize} * b.shape.rank_v;
  auto* const tile = reinterpret_cast<uint16_t*>(b.tile);
  uint16_t* const tile_v = tile + int64_t{kBlockSize} * b.map.head_dim;
  const auto* latents = reinterpret_cast<const uint16_t*>(b.block);
  if (b.run == nullptr) {
    __builtin_memcpy(tile_v, latents + n_latents, n_values * sizeof(uint16_t));
  } else {
    float* const values = reinterpret_cast<float*>(scratch);
    auto* const rounded = reinterpret_cast<uint16_t*>(values + 2 * kBlockSize * kMaxRowRank);
    latents = rounded;
    if (b.run->k.n_segments > 0 && b.run->lowrank == 0) {
      return ReadUnits(b, rounded, tile, tile_v);
    }
    ExpandSealedBlockAvx512(*b.run, b.block, b.block_idx, values);
    RoundAll(values, n_latents, rounded);
    RoundAll(values + n_latents, n_values, tile_v);
  }
  ReadKeys<false>(b, latents, nullptr, tile);
}

}  // namespace kvlathe
