// The entries of a sequence: their positions, and what becomes of those that are dropped or merged.
#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/check.h"
#include "format/entry_table.h"
#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// Of a head, while the next step is extended for.
int64_t SequenceCache::EntryBytesFor(int64_t n_blocks) const {
  return layout_->RetentionIsOver(n_tokens_, n_prompt_) ? 0 : EntryTableBytes(*layout_, n_blocks);
}

// Of new entries of the head, the first of which has place positions.begin - n_gone; without votes
// yet.
void SequenceCache::EnterPositions(const HeadTable& head, Range positions, int64_t n_gone) {
  const bool has_sums = layout_->retention->HasVotes();
  int32_t of_block[kBlockSize];
  for (int64_t begin = positions.begin; begin < positions.end;) {
    const int64_t entry = begin - n_gone, block = entry / kBlockSize, slot = entry % kBlockSize;
    const int64_t n = std::min(kBlockSize - slot, positions.end - begin);
    std::iota(of_block, of_block + n, static_cast<int32_t>(begin));
    const int64_t at = block * EntryTable::BlockBytes(has_sums);
    device().Upload({head.entry_table, at + slot * static_cast<int64_t>(sizeof(int32_t))},
                    std::as_bytes(std::span(of_block, static_cast<size_t>(n))));
    if (has_sums) {
      const auto width = static_cast<int64_t>(sizeof(int64_t));
      const int64_t sums = at + kBlockSize * static_cast<int64_t>(sizeof(int32_t));
      device().Fill({head.entry_table, sums + slot * width}, std::byte{0}, n * width);
    }
    begin += n;
  }
}

// Positions up to n_tokens are there now.
void SequenceCache::EnterNewEntries(int64_t n_tokens) {
  const int64_t first = std::max<int64_t>(n_tokens_, layout_->n_sink);
  const bool was_over = layout_->RetentionIsOver(n_tokens_, n_prompt_);
  const bool ends_prompt = n_tokens_ < n_prompt_ && n_tokens >= n_prompt_;
  if (ends_prompt && layout_->ReadsWholeKeys()) first_whole_layer_ = 0;
  n_tokens_ = static_cast<int>(n_tokens);
  if (!layout_->DropsEntries() || was_over) return;
  const RetentionPlan& plan = *layout_->retention;
  const PromptPlace place = {layout_->n_sink, n_prompt_};
  if (IsPrunePoint(plan, place, n_tokens)) kept_ = KeptAt(plan, place, n_tokens);
  bool drops = layout_->RetentionIsOver(n_tokens, n_prompt_);  // at least the tables
  for (HeadTable& head : heads_) {
    const int64_t n_gone = layout_->n_sink + head.n_dropped;
    EnterPositions(head, {first, n_tokens}, n_gone);
    drops = drops || n_tokens - n_gone > kept_.n;
  }
  if (!drops) kept_ = {};
}

int SequenceCache::n_entries(int layer_idx, int kv_head_idx) const {
  const HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  return static_cast<int>(n_tokens_ - layout_->n_sink - head.n_dropped);
}

EntryTableId SequenceCache::entries(int layer_idx, int kv_head_idx) const {
  if (!layout_->DropsEntries()) return {};
  return {heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].entry_table,
          layout_->retention->HasVotes()};
}

void SequenceCache::DropPruned(int layer_idx) {
  KVL_CHECK(must_prune());
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + g];
    const int64_t n_before = std::max(0, n_entries(layer_idx, g));
    head.n_dropped += std::max<int64_t>(0, n_before - kept_.n);
    const int64_t n_kept = std::min<int64_t>(n_before, kept_.n);
    const int64_t n_blocks = BlocksAfterPrune(*layout_->retention, n_before, n_kept);
    ReleaseBlocksBehind(n_blocks, &head);
    const bool is_over = layout_->RetentionIsOver(n_tokens_, n_prompt_);
    // A system without memory for a smaller table leaves the large one, and bytes() says so.
    SetEntryTableSize(is_over ? 0 : EntryTableBytes(*layout_, n_blocks), &head);
  }
  if (layer_idx + 1 < layout_->n_layers) return;
  kept_ = {};
  CountWritable();
}

Status SequenceCache::ShrinkBlocks(int layer_idx) {
  KVL_CHECK(must_cut_keys() && layer_idx == first_whole_layer_);
  ++first_whole_layer_;
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + g];
    const int64_t n_bytes = BlockObjectBytes(layout_->shape(layer_idx, g));
    for (ObjectId& block : head.blocks) {
      const ObjectId shrunk = pool_->Resize(block, n_bytes);
      if (shrunk.is_null()) {
        return Error(StatusCode::kResourceExhausted, "no memory to cut the keys of layer {}",
                     layer_idx);
      }
      block = shrunk;
    }
  }
  return OkStatus();
}

ObjectId SequenceCache::open_entry(int layer_idx, int kv_head_idx) const {
  return heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].open_entry;
}

void SequenceCache::SetMerged(int layer_idx, int kv_head_idx, int64_t n_entries) {
  HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  const int64_t n_seen = std::max<int64_t>(0, n_tokens_ - layout_->n_sink);
  KVL_CHECK_LE(n_entries, n_seen - head.n_dropped);
  head.n_dropped = n_seen - n_entries;
  const int64_t n_blocks = BlocksOf(head, n_tokens_);
  ReleaseBlocksBehind(n_blocks, &head);
  if (&head == &heads_.back()) CountWritable();
}

MergedLength SequenceCache::merged_length(int layer_idx, int kv_head_idx) const {
  const HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  MergedLength length = {.n_entries = std::max(0, n_entries(layer_idx, kv_head_idx))};
  if (!layout_->HasRunsOfHeads() || head.runs.empty()) return length;
  const SealedRun& first = head.runs.front();
  length.n_prompt_blocks = first.is_prompt ? first.n_blocks : 0;
  length.n_sealed_blocks = static_cast<int>(head.n_sealed());
  return length;
}

}  // namespace kvlathe
