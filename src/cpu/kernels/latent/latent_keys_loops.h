// What the readers of latents that compute in F32 share: everything but the product. Every function
// has internal linkage, so that code compiled with instruction set flags is never linked into a
// portable path.
#pragma once

#include "cpu/kernels/latent/latent_keys.h"

namespace kvlathe {
namespace {

inline float WideValue(float x) { return x; }
inline float WideValue(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

// The pairs of a plain block's K as lines of one latent each: to [rank][kBlockSize].
template <typename Element>
void SplitPairs(const Element* pairs, int rank, float* to) {
  for (int r = 0; r < rank; r += 2, pairs += 2 * kBlockSize, to += 2 * kBlockSize) {
    for (int t = 0; t < kBlockSize; ++t) {
      to[t] = WideValue(pairs[2 * t]);
      to[kBlockSize + t] = WideValue(pairs[2 * t + 1]);
    }
  }
}

// Kernels: Expand(run, block, block_idx, values) gives a sealed block in F32; AddProducts(a, b,
// latents, rank, sums) adds the products of two columns of the way back to sums [2][kBlockSize];
// StoreRows(from, n, to) writes n values, a multiple of kBlockSize, as Row.
template <typename Row, typename Kernels>
void ReadLatents(const LatentBlock& b, std::byte* scratch) {
  const int rank = b.shape.rank_k, head_dim = b.map.head_dim, n_read = LatentsToRead(b);
  float* const values = reinterpret_cast<float*>(scratch);
  float* const keys = values + 2 * kBlockSize * kMaxRowRank;
  float* const latents = keys + kBlockSize * kMaxRowRank;
  Row* const tile = reinterpret_cast<Row*>(b.tile);
  Row* const tile_v = tile + int64_t{kBlockSize} * head_dim;
  const int64_t n_values = int64_t{kBlockSize} * b.shape.rank_v;
  if (b.run == nullptr) {
    const Row* from = reinterpret_cast<const Row*>(b.block);
    SplitPairs(from, rank, latents);
    __builtin_memcpy(tile_v, from + int64_t{kBlockSize} * rank, n_values * sizeof(Row));
  } else {
    Kernels::Expand(*b.run, b.block, b.block_idx, values);
    SplitPairs(values, rank, latents);
    Kernels::StoreRows(values + int64_t{kBlockSize} * rank, n_values, tile_v);
  }
  const Row* column = static_cast<const Row*>(b.map.columns);
  for (int i = 0; i < head_dim; i += 2, column += 2 * rank) {
    alignas(64) float sums[2][kBlockSize];
    for (int t = 0; t < kBlockSize; ++t) {
      sums[0][t] = b.map.offset[i];
      sums[1][t] = b.map.offset[i + 1];
    }
    Kernels::AddProducts(column, column + rank, latents, n_read, sums);
    float* const pair = keys + int64_t{kBlockSize} * i;
    for (int t = 0; t < kBlockSize; ++t) {
      pair[2 * t] = sums[0][t];
      pair[2 * t + 1] = sums[1][t];
    }
  }
  for (int key = 0; b.rotation.half > 0 && key < head_dim; key += b.map.key_dim) {
    TurnKeys(b.rotation, keys + int64_t{kBlockSize} * key);
  }
  Kernels::StoreRows(keys, int64_t{kBlockSize} * head_dim, tile);
}

}  // namespace
}  // namespace kvlathe
