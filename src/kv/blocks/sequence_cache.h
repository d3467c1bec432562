// The cache of one sequence: for every layer and KV head a block table and a length of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/blocks/block_pool.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// Bytes by part, at the allocator.
struct KvBytes {
  int64_t blocks = 0;
  int64_t sinks = 0;
  int64_t run_records = 0;
  int64_t layer_records = 0;
  int64_t tables = 0;
  int64_t total() const { return blocks + sinks + run_records + layer_records + tables; }
};

class SequenceCache {
 public:
  // `layout` and `pool` outlive the cache.
  SequenceCache(const CacheLayout* layout, BlockPool* pool);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // Makes positions [n_tokens, n_tokens + n_new) writable in every head: all or nothing.
  // kResourceExhausted, with what is needed and what is free, when the budget does not hold them.
  // Costs a comparison when no head needs a block. New rows are undefined until written.
  // With a window, blocks that none of the new positions can see are given back first, also when
  // there is then no room.
  Status Extend(int n_new);
  // Gives everything back.
  void Clear();

  int n_tokens() const { return n_tokens_; }  // positions made writable so far
  // Equals SequenceBytes(*layout, n_tokens(), n_new of the last Extend), summed over the sizes of
  // the objects held.
  KvBytes bytes() const;

  // Blocks of one head, oldest first; entry e (position n_sink + e) is in block e / kBlockSize.
  // Those that fell out of the window are null.
  // Valid until the next Extend or Clear.
  std::span<std::byte* const> blocks(int layer_idx, int kv_head_idx) const;
  // Sink rows: K [n_sink, head_dim] and V [n_sink, rank_v]; null when the layout has no sink or
  // the cache is empty.
  std::byte* sink_k(int layer_idx, int kv_head_idx) const;
  std::byte* sink_v(int layer_idx, int kv_head_idx) const;

 private:
  struct HeadTable;
  void ReleaseOutOfWindow();
  int64_t MissingBytes(int64_t n_tokens) const;
  bool AllocateObjects(int64_t n_tokens, std::vector<std::byte*>* objects);
  bool GrowTables(int64_t n_tokens);

  const CacheLayout* layout_;
  BlockPool* pool_;
  int n_tokens_ = 0;
  int64_t n_released_ = 0;        // blocks of every head that fell out of the window
  int64_t n_writable_ = 0;        // positions that the objects of every head hold
  std::vector<HeadTable> heads_;  // [n_layers * n_kv_heads]
};

}  // namespace kvlathe
