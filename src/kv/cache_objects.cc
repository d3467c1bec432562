#include "kv/cache_objects.h"

#include <limits>

namespace kvlathe {

SequenceContents::SequenceContents(const CacheLayout& layout, const SequenceLength& length,
                                   std::span<const MergedLength> merged)
    : layout_(layout), length_(length), merged_(merged) {
  if (merged.empty()) n_blocks_ = HeldBlocks(layout, length.n_tokens, length.n_prompt);
  if (!layout.HasRunsOfHeads() || merged.empty()) {
    runs_ = RunsOf(layout, length.n_tokens, length.n_prompt);
    MarkPressed(length.pressed_runs, &runs_);
  }
}

HeadContents SequenceContents::Of(int layer_idx, int kv_head_idx) {
  const size_t head_idx = static_cast<size_t>(layer_idx) * layout_.n_kv_heads + kv_head_idx;
  const int64_t released_at = length_.n_tokens - length_.n_step;
  HeadContents contents = {
      .plain = layout_.PlainShapeAt(head_idx, length_.n_tokens, length_.n_prompt),
      .n_blocks = n_blocks_,
      .n_gone = BlocksOutOfWindow(layout_, layer_idx, released_at),
      .has_sinks = !SinksOutOfWindow(layout_, layer_idx, released_at),
      .entry_bytes = EntryBytesAt(layout_, n_blocks_, length_.n_tokens, length_.n_prompt)};
  if (!merged_.empty()) {
    contents.n_blocks = (int64_t{merged_[head_idx].n_entries} + kBlockSize - 1) / kBlockSize;
    if (layout_.DropsByHead()) {
      contents.entry_bytes =
          EntryBytesAt(layout_, contents.n_blocks, length_.n_tokens, length_.n_prompt);
    }
    if (layout_.HasRunsOfHeads()) runs_ = RunsOf(layout_, merged_[head_idx]);
  }
  contents.runs = runs_;
  return contents;
}

HeadInRun HeadInRunOf(const CacheLayout& layout, int layer_idx, int kv_head_idx) {
  const int n_heads = layout.n_heads_per_run(), first = kv_head_idx / n_heads * n_heads;
  int64_t sum = 0;
  for (int g = first; g < first + n_heads; ++g) sum += layout.shape(layer_idx, g).rank_v;
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return {layout.shape(layer_idx, kv_head_idx), layout.storage(layer_idx, kv_head_idx),
          static_cast<int>(std::min(sum, kMost)), layout.OwnsLayerRecord(kv_head_idx)};
}

void AddObjects(const CacheObjects& objects, KvBytes* bytes) {
  const int64_t n_bytes = objects.total_bytes();
  switch (objects.part) {
    case ObjectPart::kSink:
      bytes->sinks += n_bytes;
      return;
    case ObjectPart::kSealedBlock:
    case ObjectPart::kPlainBlock:
      bytes->blocks += n_bytes;
      return;
    case ObjectPart::kRunRecord:
    case ObjectPart::kQueryGram:
      bytes->run_records += n_bytes;
      return;
    case ObjectPart::kLayerRecord:
      bytes->layer_records += n_bytes;
      return;
    case ObjectPart::kOpenEntry:
    case ObjectPart::kFlags:
    case ObjectPart::kEntries:
      bytes->entries += n_bytes;
      return;
    case ObjectPart::kBlockTable:
    case ObjectPart::kRunTable:
      bytes->tables += n_bytes;
      return;
  }
}

}  // namespace kvlathe
