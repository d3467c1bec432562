#include "kv/blocks/sequence_cache.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "kv/blocks/head_table.h"
#include "kv/cache_objects.h"

namespace kvlathe {

SequenceCache::SequenceCache(const CacheLayout* layout, BlockPool* pool)
    : layout_(layout),
      pool_(pool),
      first_whole_layer_(layout->n_layers),
      heads_(layout->shapes.size()) {
  KVL_CHECK_EQ(layout->shapes.size(), size_t(layout->n_layers) * layout->n_kv_heads);
}

SequenceCache::~SequenceCache() { Clear(); }

bool SequenceCache::has_whole_keys(int layer_idx) const {
  return layout_->ReadsWholeKeys() && (n_tokens_ < n_prompt_ || layer_idx >= first_whole_layer_);
}

BlockShape SequenceCache::ShapeOf(size_t head_idx) const {
  const bool is_whole = has_whole_keys(static_cast<int>(head_idx) / layout_->n_kv_heads);
  return is_whole ? layout_->WholeKeyShape(head_idx) : layout_->shapes[head_idx];
}

BlockShape SequenceCache::shape(int layer_idx, int kv_head_idx) const {
  return ShapeOf(static_cast<size_t>(layer_idx) * layout_->n_kv_heads + kv_head_idx);
}

void SequenceCache::set_n_prompt(int64_t n_prompt, int64_t n_generated) {
  KVL_CHECK_EQ(n_tokens_, 0);
  n_prompt_ = n_prompt;
  n_generated_ = n_generated;
}

int64_t SequenceCache::max_step() const {
  int64_t next = NextSealPoint(*layout_, n_tokens_, n_prompt_);
  if (layout_->DropsEntries()) {
    const PromptPlace place = {layout_->n_sink, n_prompt_};
    next = std::min(next, NextPrunePoint(*layout_->retention, place, n_tokens_));
  }
  return next - n_tokens_;
}

int64_t SequenceCache::BlocksOf(const HeadTable& head, int64_t n_tokens) const {
  return BlocksFor(*layout_, n_tokens - head.n_dropped);
}

// What n_tokens positions, the last of which end `runs`, need beyond what the heads hold.
int64_t SequenceCache::MissingBytes(int64_t n_tokens, const std::vector<RunExtent>& runs) const {
  int64_t n_bytes = SealRoom(n_tokens, runs, 0);
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    const int64_t n_blocks = BlocksOf(head, n_tokens);
    const BlockShape shape = ShapeOf(i);
    if (head.sink.is_null()) n_bytes += SinkBytes(*layout_, shape);
    if (head.open_entry.is_null()) n_bytes += OpenEntryBytes(*layout_, shape);
    if (NeedsQueryGram(head)) n_bytes += QueryGramBytes(*layout_);
    n_bytes += std::max<int64_t>(0, RunTableBytesWith(runs, i) - head.run_table_bytes);
    if (n_blocks <= head.n_blocks()) continue;
    n_bytes += (n_blocks - head.n_blocks()) * BlockObjectBytes(shape);
    n_bytes += std::max<int64_t>(0, TableBytes(n_blocks) - head.table_bytes);
    n_bytes += EntryBytesFor(n_blocks) - head.entry_table_bytes;
  }
  return n_bytes;
}

bool SequenceCache::NeedsQueryGram(const HeadTable& head) const {
  return layout_->GathersQueries() && head.runs.empty() && head.query_gram.is_null();
}

// Sinks, open entries, Grams of queries and blocks in the order of heads (each head's in this
// order). On failure all that was taken is given back.
bool SequenceCache::AllocateObjects(int64_t n_tokens, std::vector<ObjectId>* objects) {
  const auto take = [&](int64_t n_bytes) {
    const ObjectId object = pool_->Allocate(ObjectKind::kBlock, n_bytes);
    if (!object.is_null()) objects->push_back(object);
    return !object.is_null();
  };
  bool ok = true;
  for (size_t i = 0; ok && i < heads_.size(); ++i) {
    const BlockShape shape = ShapeOf(i);
    const int64_t n_blocks = BlocksOf(heads_[i], n_tokens);
    if (heads_[i].sink.is_null() && layout_->n_sink > 0) ok = take(SinkBytes(*layout_, shape));
    if (ok && heads_[i].open_entry.is_null() && layout_->MergesEntries()) {
      ok = take(OpenEntryBytes(*layout_, shape));
    }
    if (ok && NeedsQueryGram(heads_[i])) ok = take(QueryGramBytes(*layout_));
    for (int64_t b = heads_[i].n_blocks(); ok && b < n_blocks; ++b) {
      ok = take(BlockObjectBytes(shape));
    }
  }
  if (!ok) {
    for (const ObjectId& object : *objects) pool_->Release(object);
  }
  return ok;
}

// The table, which has no more elements than n_bytes hold, takes as much memory as they say.
template <typename T>
bool SequenceCache::SetTableSize(int64_t n_bytes, std::vector<T>* table, int64_t* table_bytes) {
  if (n_bytes == *table_bytes) return true;
  if (!pool_->CountHostTables(n_bytes - *table_bytes)) return false;
  std::vector<T> resized;
  resized.reserve(static_cast<size_t>(n_bytes) / sizeof(T));
  resized.insert(resized.end(), table->begin(), table->end());
  table->swap(resized);
  *table_bytes = n_bytes;
  return true;
}

template bool SequenceCache::SetTableSize(int64_t, std::vector<ObjectId>*, int64_t*);
template bool SequenceCache::SetTableSize(int64_t, std::vector<SealedRun>*, int64_t*);

bool SequenceCache::SetEntryTableSize(int64_t n_bytes, HeadTable* head) {
  if (n_bytes == head->entry_table_bytes) return true;
  if (n_bytes == 0) {
    pool_->Release(std::exchange(head->entry_table, {}));
    head->entry_table_bytes = 0;
    return true;
  }
  const ObjectId resized = head->entry_table.is_null()
                               ? pool_->Allocate(ObjectKind::kTable, n_bytes)
                               : pool_->Resize(head->entry_table, n_bytes);
  if (resized.is_null()) return false;
  head->entry_table = resized;
  head->entry_table_bytes = n_bytes;
  return true;
}

// On failure the tables that grew keep their size: bytes() still says what is held, and the next
// Extend uses them.
bool SequenceCache::GrowTables(int64_t n_tokens, const std::vector<RunExtent>& runs) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    HeadTable& head = heads_[i];
    const int64_t n_blocks = BlocksOf(head, n_tokens);
    const int64_t block_bytes = std::max(head.table_bytes, TableBytes(n_blocks));
    const int64_t entry_bytes = std::max(head.entry_table_bytes, EntryBytesFor(n_blocks));
    const int64_t run_bytes = std::max(head.run_table_bytes, RunTableBytesWith(runs, i));
    if (!SetTableSize(block_bytes, &head.blocks, &head.table_bytes) ||
        !SetEntryTableSize(entry_bytes, &head) ||
        !SetTableSize(run_bytes, &head.runs, &head.run_table_bytes)) {
      return false;
    }
  }
  return true;
}

// With the last block of a run its records go as well.
void SequenceCache::ReleaseBlock(HeadTable* head, int64_t block_idx) {
  pool_->Release(std::exchange(head->blocks[block_idx], {}));
  const auto run = std::ranges::partition_point(
      head->runs, [&](const SealedRun& r) { return r.first_block + r.n_blocks <= block_idx; });
  if (run == head->runs.end() || run->first_block + run->n_blocks - 1 != block_idx) return;
  ReleaseRecords(&*run);
}

void SequenceCache::ReleaseBlocksBehind(int64_t n_blocks, HeadTable* head) {
  while (head->n_blocks() > n_blocks) {
    ReleaseBlock(head, head->n_blocks() - 1);
    head->blocks.pop_back();
  }
  SetTableSize(TableBytes(n_blocks), &head->blocks, &head->table_bytes);
}

void SequenceCache::ReleaseOutOfWindow() {
  for (int l = 0; layout_->HasWindow() && l < layout_->n_layers; ++l) {
    const int64_t n_unseen = BlocksOutOfWindow(*layout_, l, n_tokens_);
    for (int64_t b = BlocksReleased(l); b < n_unseen; ++b) {
      for (int g = 0; g < layout_->n_kv_heads; ++g) {
        ReleaseBlock(&heads_[l * layout_->n_kv_heads + g], b);
      }
    }
  }
  released_at_ = n_tokens_;
}

Status SequenceCache::NoRoom(int n_new, int64_t needed_bytes) const {
  const PoolUsage usage = pool_->usage();
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: {} more positions need {} bytes, {} of {} are free; raise "
               "--kv-memory, or run fewer or shorter sequences",
               n_new, needed_bytes, usage.budget_bytes - usage.used_bytes, usage.budget_bytes);
}

Status SequenceCache::Extend(int n_new) {
  KVL_CHECK_GE(n_new, 0);
  if (must_seal() || must_prune() || must_cut_keys()) {
    return Error(StatusCode::kDataLoss,
                 "the sequence failed at {} positions and cannot go on; start it again", n_tokens_);
  }
  KVL_CHECK_LE(n_new, max_step());
  if (n_new > 0) ReleaseOutOfWindow();
  const int64_t n_tokens = int64_t{n_tokens_} + n_new;
  const std::vector<RunExtent> runs = NextRuns(n_tokens);
  const int64_t room_bytes = SealRoom(n_tokens, runs, 0);
  if (n_tokens <= n_writable_ && room_bytes == 0) {
    EnterNewEntries(n_tokens);
    return OkStatus();
  }
  if (n_tokens > std::numeric_limits<int>::max()) {
    return Error(StatusCode::kInvalidArgument, "a sequence of {} positions is beyond the limit {}",
                 n_tokens, std::numeric_limits<int>::max());
  }
  const int64_t needed_bytes = MissingBytes(n_tokens, runs);
  std::vector<ObjectId> objects;
  if (!pool_->HasRoomFor(needed_bytes) || !AllocateObjects(n_tokens, &objects)) {
    return NoRoom(n_new, needed_bytes);
  }
  if (!GrowTables(n_tokens, runs)) {
    for (const ObjectId& object : objects) pool_->Release(object);
    return Error(StatusCode::kResourceExhausted, "no memory for block tables ({} bytes needed)",
                 needed_bytes);
  }
  auto next = objects.begin();
  for (size_t i = 0; i < heads_.size(); ++i) {
    HeadTable& head = heads_[i];
    if (head.sink.is_null() && layout_->n_sink > 0) head.sink = *next++;
    if (head.open_entry.is_null() && layout_->MergesEntries()) {
      head.open_entry = *next++;
      device().Fill({head.open_entry}, std::byte{0}, OpenEntryBytes(*layout_, layout_->shapes[i]));
    }
    if (NeedsQueryGram(head)) {
      head.query_gram = *next++;
      device().Fill({head.query_gram}, std::byte{0}, QueryGramBytes(*layout_));
    }
    const int64_t n_blocks = BlocksOf(head, n_tokens);
    while (head.n_blocks() < n_blocks) head.blocks.push_back(*next++);
  }
  CountWritable();
  EnterNewEntries(n_tokens);
  must_seal_ = !runs.empty();
  aside_bytes_ = room_bytes;
  KVL_CHECK(pool_->SetAside(aside_bytes_));  // HasRoomFor counted it
  return OkStatus();
}

void SequenceCache::CountWritable() {
  n_writable_ = std::numeric_limits<int64_t>::max();
  for (const HeadTable& head : heads_) {
    n_writable_ =
        std::min(n_writable_, layout_->n_sink + head.n_dropped + head.n_blocks() * kBlockSize);
  }
}

void SequenceCache::Clear() {
  pool_->ReturnAside(std::exchange(aside_bytes_, 0));
  must_seal_ = false;
  first_whole_layer_ = layout_->n_layers;
  reencoding_ = {};
  for (size_t i = 0; i < heads_.size(); ++i) {
    HeadTable& head = heads_[i];
    const int64_t n_released = BlocksReleased(static_cast<int>(i) / layout_->n_kv_heads);
    for (int64_t b = n_released; b < head.n_blocks(); ++b) ReleaseBlock(&head, b);
    for (ObjectId HeadTable::*const object : HeadTable::kOwned) {
      if (!(head.*object).is_null()) pool_->Release(head.*object);
    }
    pool_->CountHostTables(-head.table_bytes - head.run_table_bytes);
    head = HeadTable();
  }
  n_tokens_ = 0;
  n_prompt_ = kEndlessPrompt;
  n_generated_ = 0;
  kept_ = {};
  released_at_ = 0;
  n_writable_ = 0;
}

KvBytes SequenceCache::bytes() const {
  KvBytes bytes;
  std::vector<RunExtent> runs;
  for (int l = 0; l < layout_->n_layers; ++l) {
    for (int g = 0; g < layout_->n_kv_heads; ++g) {
      const HeadTable& head = heads_[l * layout_->n_kv_heads + g];
      runs.clear();
      for (const SealedRun& run : this->runs(l, g)) {
        runs.push_back({run.first_block, run.n_blocks, run.is_prompt, run.is_repaired});
      }
      const HeadContents contents = {.plain = shape(l, g),
                                     .n_blocks = head.n_blocks(),
                                     .n_gone = BlocksReleased(l),
                                     .runs = runs};
      ForEachObject(*layout_, HeadInRunOf(*layout_, l, g), contents,
                    [&](const CacheObjects& objects) {
                      if (head.Holds(objects.part)) AddObjects(objects, &bytes);
                    });
      // Tables have the size that they were last given.
      bytes.tables += head.table_bytes + head.run_table_bytes;
      bytes.entries += head.entry_table_bytes;
    }
  }
  return bytes;
}

ObjectId SequenceCache::query_gram(int layer_idx, int kv_head_idx) const {
  return heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].query_gram;
}

std::span<const ObjectId> SequenceCache::blocks(int layer_idx, int kv_head_idx) const {
  return heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].blocks;
}

ObjectPlace SequenceCache::sink_k(int layer_idx, int kv_head_idx) const {
  return {heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].sink};
}

ObjectPlace SequenceCache::sink_v(int layer_idx, int kv_head_idx) const {
  const ObjectPlace rows = sink_k(layer_idx, kv_head_idx);
  return {rows.object, int64_t{layout_->n_sink} * layout_->head_dim *
                           SizeOf(layout_->shape(layer_idx, kv_head_idx).row_type)};
}

}  // namespace kvlathe
