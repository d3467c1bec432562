#include "kv/blocks/sequence_objects.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "format/entry_table.h"
#include "kv/cache_objects.h"

namespace kvlathe {
namespace {

// Of the list of a head's runs once `run` is sealed; 0 where that is none.
int64_t RunTableBytesWith(const HeadTable& head, const RunExtent& run) {
  if (run.n_blocks == 0) return 0;
  const int64_t n_before = run.first_block == 0 ? 0 : std::ssize(head.runs);
  return RunTableBytes(n_before + std::ssize(RunsByClass(run)));
}

int64_t RunTableBytesWith(std::span<const HeadTable> heads, const std::vector<RunExtent>& runs,
                          size_t head_idx) {
  return runs.empty() ? 0 : RunTableBytesWith(heads[head_idx], runs[head_idx]);
}

// Of a head, while the next step is extended for.
int64_t EntryBytesFor(const CacheLayout& layout, const SequenceProgress& progress,
                      int64_t n_blocks) {
  return EntryBytesAt(layout, n_blocks, progress.n_settled(), progress.n_prompt);
}

// Sinks that fell out of a window do not come back.
bool NeedsSinks(const CacheLayout& layout, const SequenceProgress& progress,
                std::span<const HeadTable> heads, size_t head_idx) {
  const int layer_idx = static_cast<int>(head_idx) / layout.n_kv_heads;
  return layout.n_sink > 0 && heads[head_idx].sink.is_null() &&
         !SinksOutOfWindow(layout, layer_idx, progress.released_at);
}

bool NeedsQueryGram(const CacheLayout& layout, const HeadTable& head) {
  return layout.GathersQueries() && head.runs.empty() && head.query_gram.is_null();
}

// Of new entries of the head, the first of which has place positions.begin - n_gone; without votes
// yet.
void EnterPositions(const HeadTable& head, Range positions, int64_t n_gone, bool has_sums,
                    Device* device) {
  int32_t of_block[kBlockSize];
  for (int64_t begin = positions.begin; begin < positions.end;) {
    const int64_t entry = begin - n_gone, block = entry / kBlockSize, slot = entry % kBlockSize;
    const int64_t n = std::min(kBlockSize - slot, positions.end - begin);
    std::iota(of_block, of_block + n, static_cast<int32_t>(begin));
    const int64_t at = block * EntryTable::BlockBytes(has_sums);
    device->Upload({head.entry_table, at + slot * static_cast<int64_t>(sizeof(int32_t))},
                   std::as_bytes(std::span(of_block, static_cast<size_t>(n))));
    if (has_sums) {
      const auto width = static_cast<int64_t>(sizeof(int64_t));
      const int64_t sums = at + kBlockSize * static_cast<int64_t>(sizeof(int32_t));
      device->Fill({head.entry_table, sums + slot * width}, std::byte{0}, n * width);
    }
    begin += n;
  }
}

Status NoRoom(int64_t n_new, int64_t needed_bytes, const PoolUsage& usage) {
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: {} more positions need {} bytes, {} of {} are free; raise "
               "--kv-memory, or run fewer or shorter sequences",
               n_new, needed_bytes, usage.budget_bytes - usage.used_bytes, usage.budget_bytes);
}

}  // namespace

SequenceObjects::SequenceObjects(const CacheLayout* layout, BlockPool* pool)
    : layout_(layout), pool_(pool), heads_(layout->shapes.size()) {
  KVL_CHECK_EQ(layout->shapes.size(), size_t(layout->n_layers) * layout->n_kv_heads);
}

KvBytes SequenceObjects::bytes(const SequenceProgress& progress) const {
  KvBytes bytes;
  std::vector<RunExtent> runs;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    const int l = static_cast<int>(i) / layout_->n_kv_heads;
    const int g = static_cast<int>(i) % layout_->n_kv_heads;
    runs.clear();
    for (const SealedRun& run : head.runs) runs.push_back(ExtentOf(run));
    const HeadContents contents = {.plain = progress.ShapeOf(*layout_, i),
                                   .n_blocks = head.n_blocks(),
                                   .n_gone = BlocksOutOfWindow(*layout_, l, progress.released_at),
                                   .runs = runs};
    ForEachObject(*layout_, HeadInRunOf(*layout_, l, g), contents,
                  [&](const CacheObjects& objects) {
                    if (head.Holds(objects.part)) AddObjects(objects, &bytes);
                  });
    // Tables have the size that they were last given.
    bytes.tables += head.table_bytes + head.run_table_bytes;
    bytes.entries += head.entry_table_bytes;
  }
  return bytes;
}

int64_t SequenceObjects::WritablePositions() const {
  int64_t n_writable = std::numeric_limits<int64_t>::max();
  for (const HeadTable& head : heads_) {
    n_writable =
        std::min(n_writable, layout_->n_sink + head.n_dropped + head.n_blocks() * kBlockSize);
  }
  return n_writable;
}

// What n_tokens positions, the last of which end `runs`, need beyond what the heads hold, room to
// seal aside.
int64_t SequenceObjects::MissingBytes(const SequenceProgress& progress, int64_t n_tokens,
                                      const std::vector<RunExtent>& runs) const {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    const int64_t n_blocks = head.BlocksAt(*layout_, n_tokens);
    const BlockShape shape = progress.ShapeOf(*layout_, i);
    if (NeedsSinks(*layout_, progress, heads_, i)) n_bytes += SinkBytes(*layout_, shape);
    if (head.open_entry.is_null()) n_bytes += OpenEntryBytes(*layout_, shape);
    if (head.flags.is_null()) n_bytes += EvictionFlagBytes(*layout_);
    if (NeedsQueryGram(*layout_, head)) n_bytes += QueryGramBytes(*layout_);
    n_bytes += std::max<int64_t>(0, RunTableBytesWith(heads_, runs, i) - head.run_table_bytes);
    if (n_blocks <= head.n_blocks()) continue;
    n_bytes += (n_blocks - head.n_blocks()) * BlockObjectBytes(*layout_, shape);
    n_bytes += std::max<int64_t>(0, TableBytes(n_blocks) - head.table_bytes);
    n_bytes += EntryBytesFor(*layout_, progress, n_blocks) - head.entry_table_bytes;
  }
  return n_bytes;
}

// Sinks, open entries, flags, Grams of queries and blocks in the order of heads (each head's in
// this order). On failure all that was taken is given back.
bool SequenceObjects::AllocateObjects(const SequenceProgress& progress, int64_t n_tokens,
                                      std::vector<ObjectId>* objects) {
  const auto take = [&](int64_t n_bytes) {
    const ObjectId object = pool_->Allocate(ObjectKind::kBlock, n_bytes);
    if (!object.is_null()) objects->push_back(object);
    return !object.is_null();
  };
  bool ok = true;
  for (size_t i = 0; ok && i < heads_.size(); ++i) {
    const HeadTable& head = heads_[i];
    const BlockShape shape = progress.ShapeOf(*layout_, i);
    const int64_t n_blocks = head.BlocksAt(*layout_, n_tokens);
    if (NeedsSinks(*layout_, progress, heads_, i)) ok = take(SinkBytes(*layout_, shape));
    if (ok && head.open_entry.is_null() && layout_->MergesEntries()) {
      ok = take(OpenEntryBytes(*layout_, shape));
    }
    if (ok && head.flags.is_null() && layout_->SweepsEntries()) {
      ok = take(EvictionFlagBytes(*layout_));
    }
    if (ok && NeedsQueryGram(*layout_, head)) ok = take(QueryGramBytes(*layout_));
    for (int64_t b = head.n_blocks(); ok && b < n_blocks; ++b)
      ok = take(BlockObjectBytes(*layout_, shape));
  }
  if (!ok) {
    for (const ObjectId& object : *objects) pool_->Release(object);
  }
  return ok;
}

// On failure the tables that grew keep their size: bytes() still says what is held, and the next
// Grow uses them.
bool SequenceObjects::GrowTables(const SequenceProgress& progress, int64_t n_tokens,
                                 const std::vector<RunExtent>& runs) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    HeadTable& head = heads_[i];
    const int64_t n_blocks = head.BlocksAt(*layout_, n_tokens);
    const int64_t block_bytes = std::max(head.table_bytes, TableBytes(n_blocks));
    const int64_t entry_bytes =
        std::max(head.entry_table_bytes, EntryBytesFor(*layout_, progress, n_blocks));
    const int64_t run_bytes = std::max(head.run_table_bytes, RunTableBytesWith(heads_, runs, i));
    if (!head.SetBlockTableSize(block_bytes, pool_) ||
        !head.SetEntryTableSize(entry_bytes, pool_) || !head.SetRunTableSize(run_bytes, pool_)) {
      return false;
    }
  }
  return true;
}

Status SequenceObjects::Grow(const SequenceProgress& progress, int64_t n_tokens,
                             const std::vector<RunExtent>& runs, int64_t room_bytes) {
  const int64_t needed_bytes = room_bytes + MissingBytes(progress, n_tokens, runs);
  std::vector<ObjectId> objects;
  if (!pool_->HasRoomFor(needed_bytes) || !AllocateObjects(progress, n_tokens, &objects)) {
    return NoRoom(n_tokens - progress.n_tokens, needed_bytes, pool_->usage());
  }
  if (!GrowTables(progress, n_tokens, runs)) {
    for (const ObjectId& object : objects) pool_->Release(object);
    return Error(StatusCode::kResourceExhausted, "no memory for block tables ({} bytes needed)",
                 needed_bytes);
  }
  auto next = objects.begin();
  for (size_t i = 0; i < heads_.size(); ++i) {
    HeadTable& head = heads_[i];
    if (NeedsSinks(*layout_, progress, heads_, i)) head.sink = *next++;
    if (head.open_entry.is_null() && layout_->MergesEntries()) {
      head.open_entry = *next++;
      device().Fill({head.open_entry}, std::byte{0}, OpenEntryBytes(*layout_, layout_->shapes[i]));
    }
    if (head.flags.is_null() && layout_->SweepsEntries()) {
      head.flags = *next++;
      device().Fill({head.flags}, std::byte{0}, EvictionFlagBytes(*layout_));
    }
    if (NeedsQueryGram(*layout_, head)) {
      head.query_gram = *next++;
      device().Fill({head.query_gram}, std::byte{0}, QueryGramBytes(*layout_));
    }
    const int64_t n_blocks = head.BlocksAt(*layout_, n_tokens);
    while (head.n_blocks() < n_blocks) head.blocks.push_back(*next++);
  }
  aside_bytes_ = room_bytes;
  KVL_CHECK(pool_->SetAside(aside_bytes_));  // HasRoomFor counted it
  return OkStatus();
}

void SequenceObjects::EnterEntries(Range positions) {
  const bool has_sums = layout_->retention->HasVotes();
  for (const HeadTable& head : heads_) {
    EnterPositions(head, positions, layout_->n_sink + head.n_dropped, has_sums, &device());
  }
}

void SequenceObjects::ReleaseOutOfWindow(const SequenceProgress& progress, int64_t n_tokens) {
  for (int l = 0; layout_->HasWindow() && l < layout_->n_layers; ++l) {
    const int64_t n_unseen = BlocksOutOfWindow(*layout_, l, n_tokens);
    for (int64_t b = BlocksOutOfWindow(*layout_, l, progress.released_at); b < n_unseen; ++b) {
      for (int g = 0; g < layout_->n_kv_heads; ++g) Head(l, g).ReleaseBlock(b, pool_);
    }
    if (!SinksOutOfWindow(*layout_, l, n_tokens)) continue;
    for (int g = 0; g < layout_->n_kv_heads; ++g) Head(l, g).ReleaseSinks(pool_);
  }
}

void SequenceObjects::SetDropped(size_t head_idx, int64_t n_dropped, int64_t n_blocks) {
  heads_[head_idx].n_dropped = n_dropped;
  heads_[head_idx].ReleaseBlocksBehind(n_blocks, pool_);
}

void SequenceObjects::CountBlocks(std::vector<int64_t>* n_blocks) const {
  n_blocks->clear();
  for (const HeadTable& head : heads_) n_blocks->push_back(head.n_blocks());
}

void SequenceObjects::ReleaseBlocksBehind(const SequenceProgress& progress,
                                          std::span<const int64_t> n_blocks) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    if (heads_[i].n_blocks() <= n_blocks[i]) continue;
    heads_[i].ReleaseBlocksBehind(n_blocks[i], pool_);
    SetEntryTableSize(i, EntryBytesFor(*layout_, progress, n_blocks[i]));
  }
}

void SequenceObjects::SetEntryTableSize(size_t head_idx, int64_t n_bytes) {
  heads_[head_idx].SetEntryTableSize(n_bytes, pool_);
}

bool SequenceObjects::ShrinkBlocks(int layer_idx) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const int64_t n_bytes = BlockObjectBytes(*layout_, layout_->shape(layer_idx, g));
    for (ObjectId& block : Head(layer_idx, g).blocks) {
      const ObjectId shrunk = pool_->Resize(block, n_bytes);
      if (shrunk.is_null()) return false;
      block = shrunk;
    }
  }
  return true;
}

void SequenceObjects::Clear() {
  SetKept(false);
  ReturnAside();
  for (HeadTable& head : heads_) head.Clear(pool_);
}

bool SequenceObjects::CopyFrom(const SequenceObjects& from) {
  if (!pool_->SetAside(from.aside_bytes_)) return false;
  aside_bytes_ = from.aside_bytes_;
  std::map<ObjectId, ObjectId> shared;  // of a layer
  for (size_t i = 0; i < heads_.size(); ++i) {
    if (i % layout_->n_kv_heads == 0) shared.clear();
    if (!heads_[i].CopyFrom(from.heads_[i], &shared, pool_)) return false;
  }
  return true;
}

bool SequenceObjects::ShareFrom(const SequenceObjects& from, int64_t n_tokens, bool to_write) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadTable& head = from.heads_[i];
    const int64_t n_entries = std::max<int64_t>(0, n_tokens - layout_->n_sink - head.n_dropped);
    SharedPart part = {.n_blocks = head.BlocksAt(*layout_, n_tokens),
                       .copies_sink = to_write && n_tokens < layout_->n_sink,
                       .copies_last_block = to_write && n_entries % kBlockSize != 0};
    for (const SealedRun& run : head.runs) {
      if (run.first_block + run.n_blocks <= part.n_blocks) ++part.n_runs;
    }
    if (!heads_[i].ShareFrom(head, part, pool_)) return false;
  }
  return true;
}

void SequenceObjects::SetKept(bool is_kept) {
  if (std::exchange(is_kept_, is_kept) == is_kept) return;
  for (const HeadTable& head : heads_) {
    head.ForEachReference([&](const ObjectId& object) {
      is_kept ? pool_->AddKeeper(object) : pool_->RemoveKeeper(object);
    });
    const int64_t table_bytes = head.table_bytes + head.run_table_bytes;
    pool_->CountKeptTables(is_kept ? table_bytes : -table_bytes);
  }
}

}  // namespace kvlathe
