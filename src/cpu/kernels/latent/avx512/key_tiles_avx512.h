// What the AVX-512 readers of Bf16 rows do with a tile of keys, four channels of 16 tokens, once it
// is made: they turn it and round it. Only files compiled with AVX-512 flags may include this, and
// everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/latent/latent_keys.h"

namespace kvlathe {
namespace {

// A channel and the next one, in [token][2] order: 8 tokens a vector.
struct TokenPairs {
  __m512 low, high;
};

KVL_INLINE TokenPairs Interleave(__m512 first, __m512 second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return {_mm512_permutex2var_ps(first, low, second), _mm512_permutex2var_ps(first, high, second)};
}

KVL_INLINE void StoreRounded(uint16_t* to, TokenPairs x) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x.high, x.low)));
}

// Real and imaginary part times cos + i sin.
KVL_INLINE void Turn(const float* cos, const float* sin, __m512* a, __m512* b) {
  const __m512 c = _mm512_loadu_ps(cos), s = _mm512_loadu_ps(sin), x = *a;
  *a = _mm512_fmsub_ps(x, c, _mm512_mul_ps(*b, s));
  *b = _mm512_fmadd_ps(*b, c, _mm512_mul_ps(x, s));
}

// Stores channels i, i + 1, i + step and i + step + 1 of 16 tokens from `token` on, not turned yet;
// the second two are what the first turn with.
template <bool kTurns>
KVL_INLINE void StoreKeys(const LatentBlock& b, const __m512 (&rows)[4], int i, int step, int token,
                          uint16_t* keys) {
  TokenPairs first = Interleave(rows[0], rows[1]);
  TokenPairs second = Interleave(rows[2], rows[3]);
  if constexpr (kTurns) {
    const int64_t angles = int64_t{i % b.map.key_dim} * kBlockSize + 2 * token;
    const float* cos = b.rotation.cos + angles;
    const float* sin = b.rotation.sin + angles;
    Turn(cos, sin, &first.low, &second.low);
    Turn(cos + 16, sin + 16, &first.high, &second.high);
  }
  StoreRounded(keys + int64_t{i} * kBlockSize + 2 * token, first);
  StoreRounded(keys + int64_t{i + step} * kBlockSize + 2 * token, second);
}

// Calls f(turns, i, step) for every tile of StoreKeys. The keys of a row follow each other at the
// same angles, which stay in L1.
template <typename F>
KVL_INLINE void ForEachTile(const LatentBlock& b, const F& f) {
  const int half = b.rotation.half, key_dim = b.map.key_dim;
  for (int i = 0; i < half; i += 2) {
    for (int key = 0; key < b.map.head_dim; key += key_dim) f(Index<1>{}, key + i, half);
  }
  for (int i = 2 * half; i < key_dim; i += 4) {
    for (int key = 0; key < b.map.head_dim; key += key_dim) f(Index<0>{}, key + i, 2);
  }
}

}  // namespace
}  // namespace kvlathe
