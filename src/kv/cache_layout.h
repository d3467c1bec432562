// What the cache of a model looks like under a spec: block shapes per layer and KV head.
#pragma once

#include <cstddef>
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

// Every object of the cache is a multiple of this and starts at one.
inline constexpr int64_t kObjectAlignment = 64;

// Objects of one KV head: its sink rows (0 without sinks), one block, the table of n_blocks
// pointers.
int64_t SinkBytes(const CacheLayout& layout, const BlockShape& shape);
int64_t BlockObjectBytes(const BlockShape& shape);
int64_t TableBytes(int64_t n_blocks);

// Blocks that n_tokens positions need in a head that keeps every position.
int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens);

// Bytes that the objects and tables of one sequence of n_tokens occupy: the closed formula that the
// allocator's count must equal. Over all layers and KV heads, for n_tokens >= 1:
//   SinkBytes + ceil(max(0, n_tokens - n_sink) / kBlockSize) * BlockObjectBytes + TableBytes
int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens);

}  // namespace kvlathe
