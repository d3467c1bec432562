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
  // The model attends to this many last positions only (0: to all). Blocks that no later position
  // can see are given back; sinks stay, unseen.
  int window = 0;

  const BlockShape& shape(int layer_idx, int kv_head_idx) const {
    return shapes[layer_idx * n_kv_heads + kv_head_idx];
  }
};

// Bytes of a 16-bit cache of n_tokens that are all attended to.
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

// Bytes of a 16-bit cache of what the model attends to after n_tokens: min(n_tokens, window)
// positions. The reference of kv_fraction for this layout.
int64_t ReferenceBytes(const CacheLayout& layout, int64_t n_tokens);

// Blocks that n_tokens positions need in a head that keeps every position.
int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens);

// Blocks, from the oldest, that no position from n_tokens on can see. 0 without a window.
int64_t BlocksOutOfWindow(const CacheLayout& layout, int64_t n_tokens);

// Bytes that the objects and tables of one sequence occupy after a step of n_step positions that
// ended at n_tokens: the closed formula that the allocator's count must equal. Over all layers and
// KV heads, for n_tokens >= n_step >= 1, with
//   n_blocks = ceil(max(0, n_tokens - n_sink) / kBlockSize):
//   SinkBytes + (n_blocks - BlocksOutOfWindow(n_tokens - n_step)) * BlockObjectBytes
//   + TableBytes(n_blocks)
// Only with a window does n_step matter: what its first position sees is held.
int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_step = 1);

// An upper bound of what the sequence occupies at any time while it grows to n_tokens in steps of
// at most max_step positions; without a window SequenceBytes.
int64_t PeakSequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t max_step);

}  // namespace kvlathe
