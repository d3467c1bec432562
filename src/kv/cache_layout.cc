#include "kv/cache_layout.h"

#include <algorithm>

#include "base/units.h"

namespace kvlathe {

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

int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens) {
  if (n_tokens <= 0) return 0;
  const int64_t n_blocks = BlocksFor(layout, n_tokens);
  int64_t n_bytes = 0;
  for (const BlockShape& shape : layout.shapes) {
    n_bytes += SinkBytes(layout, shape) + n_blocks * BlockObjectBytes(shape) + TableBytes(n_blocks);
  }
  return n_bytes;
}

}  // namespace kvlathe
