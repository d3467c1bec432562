#include "kv/blocks/sequence_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {

// Heads differ in length once a method of the retention axis drops or merges entries; so each has
// its own count.
struct SequenceCache::HeadTable {
  std::byte* sink = nullptr;
  std::byte* table = nullptr;  // [n_blocks] pointers
  int64_t table_bytes = 0;
  int64_t n_blocks = 0;

  std::byte** blocks() const { return reinterpret_cast<std::byte**>(table); }
};

SequenceCache::SequenceCache(const CacheLayout* layout, BlockPool* pool)
    : layout_(layout), pool_(pool), heads_(layout->shapes.size()) {
  KVL_CHECK_EQ(layout->shapes.size(), size_t(layout->n_layers) * layout->n_kv_heads);
}

SequenceCache::~SequenceCache() { Clear(); }

// What n_tokens positions need beyond what the heads hold.
int64_t SequenceCache::MissingBytes(int64_t n_tokens) const {
  const int64_t n_blocks = BlocksFor(*layout_, n_tokens);
  int64_t n_bytes = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    const BlockShape& shape = layout_->shapes[i];
    if (head.sink == nullptr) n_bytes += SinkBytes(*layout_, shape);
    if (n_blocks <= head.n_blocks) continue;
    n_bytes += (n_blocks - head.n_blocks) * BlockObjectBytes(shape);
    n_bytes += std::max<int64_t>(0, TableBytes(n_blocks) - head.table_bytes);
  }
  return n_bytes;
}

// Sinks and blocks in the order of heads (each head's sink first). On failure all that was taken is
// given back.
bool SequenceCache::AllocateObjects(int64_t n_tokens, std::vector<std::byte*>* objects) {
  const auto take = [&](int64_t n_bytes) {
    std::byte* object = pool_->Allocate(ObjectKind::kBlock, n_bytes);
    if (object != nullptr) objects->push_back(object);
    return object != nullptr;
  };
  const int64_t n_blocks = BlocksFor(*layout_, n_tokens);
  bool ok = true;
  for (size_t i = 0; ok && i < heads_.size(); ++i) {
    const BlockShape& shape = layout_->shapes[i];
    if (heads_[i].sink == nullptr && layout_->n_sink > 0) ok = take(SinkBytes(*layout_, shape));
    for (int64_t b = heads_[i].n_blocks; ok && b < n_blocks; ++b) {
      ok = take(BlockObjectBytes(shape));
    }
  }
  if (!ok) {
    for (std::byte* object : *objects) pool_->Release(object);
  }
  return ok;
}

// On failure the tables that grew keep their size: bytes() still says what is held, and the next
// Extend uses them.
bool SequenceCache::GrowTables(int64_t n_tokens) {
  const int64_t n_bytes = TableBytes(BlocksFor(*layout_, n_tokens));
  for (HeadTable& head : heads_) {
    if (n_bytes <= head.table_bytes) continue;
    std::byte* table = head.table == nullptr ? pool_->Allocate(ObjectKind::kTable, n_bytes)
                                             : pool_->Resize(head.table, n_bytes);
    if (table == nullptr) return false;
    head.table = table;
    head.table_bytes = n_bytes;
  }
  return true;
}

void SequenceCache::ReleaseOutOfWindow() {
  const int64_t n_unseen = BlocksOutOfWindow(*layout_, n_tokens_);
  for (; n_released_ < n_unseen; ++n_released_) {
    for (HeadTable& head : heads_) {
      pool_->Release(std::exchange(head.blocks()[n_released_], nullptr));
    }
  }
}

Status SequenceCache::Extend(int n_new) {
  KVL_CHECK_GE(n_new, 0);
  if (n_new > 0) ReleaseOutOfWindow();
  const int64_t n_tokens = int64_t{n_tokens_} + n_new;
  if (n_tokens <= n_writable_) {
    n_tokens_ = static_cast<int>(n_tokens);
    return OkStatus();
  }
  if (n_tokens > std::numeric_limits<int>::max()) {
    return Error(StatusCode::kInvalidArgument, "a sequence of {} positions is beyond the limit {}",
                 n_tokens, std::numeric_limits<int>::max());
  }
  const int64_t needed_bytes = MissingBytes(n_tokens);
  std::vector<std::byte*> objects;
  if (!pool_->HasRoomFor(needed_bytes) || !AllocateObjects(n_tokens, &objects)) {
    const PoolUsage usage = pool_->usage();
    return Error(StatusCode::kResourceExhausted,
                 "KV cache full: {} more positions need {} bytes, {} of {} are free; raise "
                 "--kv-memory, or run fewer or shorter sequences",
                 n_new, needed_bytes, usage.budget_bytes - usage.used_bytes, usage.budget_bytes);
  }
  if (!GrowTables(n_tokens)) {
    for (std::byte* object : objects) pool_->Release(object);
    return Error(StatusCode::kResourceExhausted, "no memory for block tables ({} bytes needed)",
                 needed_bytes);
  }
  const int64_t n_blocks = BlocksFor(*layout_, n_tokens);
  auto next = objects.begin();
  for (HeadTable& head : heads_) {
    if (head.sink == nullptr && layout_->n_sink > 0) head.sink = *next++;
    while (head.n_blocks < n_blocks) head.blocks()[head.n_blocks++] = *next++;
  }
  n_tokens_ = static_cast<int>(n_tokens);
  n_writable_ = layout_->n_sink + n_blocks * kBlockSize;
  return OkStatus();
}

void SequenceCache::Clear() {
  for (HeadTable& head : heads_) {
    for (int64_t b = n_released_; b < head.n_blocks; ++b) pool_->Release(head.blocks()[b]);
    if (head.table != nullptr) pool_->Release(head.table);
    if (head.sink != nullptr) pool_->Release(head.sink);
    head = HeadTable();
  }
  n_tokens_ = 0;
  n_released_ = 0;
  n_writable_ = 0;
}

KvBytes SequenceCache::bytes() const {
  KvBytes bytes;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    bytes.blocks += (head.n_blocks - n_released_) * BlockObjectBytes(layout_->shapes[i]);
    if (head.sink != nullptr) bytes.sinks += SinkBytes(*layout_, layout_->shapes[i]);
    bytes.tables += head.table_bytes;
  }
  return bytes;
}

std::span<std::byte* const> SequenceCache::blocks(int layer_idx, int kv_head_idx) const {
  const HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  return {head.blocks(), static_cast<size_t>(head.n_blocks)};
}

std::byte* SequenceCache::sink_k(int layer_idx, int kv_head_idx) const {
  return heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].sink;
}

std::byte* SequenceCache::sink_v(int layer_idx, int kv_head_idx) const {
  std::byte* rows = sink_k(layer_idx, kv_head_idx);
  if (rows == nullptr) return nullptr;
  return rows + int64_t{layout_->n_sink} * layout_->head_dim *
                    SizeOf(layout_->shape(layer_idx, kv_head_idx).row_type);
}

}  // namespace kvlathe
