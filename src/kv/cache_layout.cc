#include "kv/cache_layout.h"

#include <algorithm>

#include "base/units.h"

namespace kvlathe {
namespace {

int64_t BytesOf(const CacheLayout& layout, int64_t n_table_blocks, int64_t n_held_blocks) {
  int64_t n_bytes = 0;
  for (const BlockShape& shape : layout.shapes) {
    n_bytes += SinkBytes(layout, shape) + n_held_blocks * BlockObjectBytes(shape) +
               TableBytes(n_table_blocks);
  }
  return n_bytes;
}

}  // namespace

int64_t SinkBytes(const CacheLayout& layout, const BlockShape& shape) {
  return RoundUp(int64_t{layout.n_sink} * (layout.head_dim + shape.rank_v) * SizeOf(shape.row_type),
                 kObjectAlignment);
}

int64_t BlockObjectBytes(const BlockShape& shape) {
  return RoundUp(BlockBytes(shape), kObjectAlignment);
}

int64_t TableBytes(int64_t n_blocks) {
  return RoundUp(n_blocks * static_cast<int64_t>(sizeof(std::byte*)), kObjectAlignment);
}

int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens) {
  return (std::max<int64_t>(0, n_tokens - layout.n_sink) + kBlockSize - 1) / kBlockSize;
}

int64_t BlocksOutOfWindow(const CacheLayout& layout, int64_t n_tokens) {
  if (layout.window == 0) return 0;
  // Position n_tokens sees those after n_tokens - window.
  return std::max<int64_t>(0, n_tokens + 1 - layout.window - layout.n_sink) / kBlockSize;
}

int64_t ReferenceBytes(const CacheLayout& layout, int64_t n_tokens) {
  const int64_t n_seen = layout.window == 0 ? n_tokens : std::min<int64_t>(n_tokens, layout.window);
  return UncompressedBytes(layout.n_layers, layout.n_kv_heads, layout.head_dim, n_seen);
}

int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_step) {
  if (n_tokens <= 0) return 0;
  const int64_t n_blocks = BlocksFor(layout, n_tokens);
  return BytesOf(layout, n_blocks, n_blocks - BlocksOutOfWindow(layout, n_tokens - n_step));
}

int64_t PeakSequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t max_step) {
  if (n_tokens <= 0) return 0;
  const int64_t n_blocks = BlocksFor(layout, n_tokens);
  if (layout.window == 0) return BytesOf(layout, n_blocks, n_blocks);
  // The entries that a step sees, at the worst place relative to the blocks.
  const int64_t n_seen = layout.window + max_step - 1;
  return BytesOf(layout, n_blocks, std::min(n_blocks, (n_seen + kBlockSize - 2) / kBlockSize + 1));
}

}  // namespace kvlathe
