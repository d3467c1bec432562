// What the cache of a model looks like under a spec: block shapes per layer and KV head.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/block_layout.h"

namespace kvlathe {

struct CacheLayout {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_sink = 0;  // first positions kept as plain rows: K [n_sink, head_dim], V [n_sink, rank_v]
  std::vector<BlockShape> shapes;  // [n_layers * n_kv_heads]

  const BlockShape& shape(int layer_idx, int kv_head_idx) const {
    return shapes[layer_idx * n_kv_heads + kv_head_idx];
  }
};

// Bytes of a 16-bit cache of n_tokens: the reference of kv_fraction.
constexpr int64_t UncompressedBytes(int n_layers, int n_kv_heads, int head_dim, int64_t n_tokens) {
  return int64_t{2} * 2 * n_layers * n_kv_heads * head_dim * n_tokens;
}

// Bytes that the objects and tables of one sequence of n_tokens occupy: the closed formula that the
// allocator's count must equal.
int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens);

}  // namespace kvlathe
