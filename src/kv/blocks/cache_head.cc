#include "kv/blocks/cache_head.h"

#include <algorithm>

#include "format/entry_table.h"

namespace kvlathe {

ObjectPlace CacheHead::sink_v() const {
  return {table_->sink, int64_t{layout_->n_sink} * layout_->head_dim *
                            SizeOf(layout_->shapes[head_idx_].row_type)};
}

EntryTableId CacheHead::entries() const {
  if (!layout_->DropsEntries() || HasSortedPositions()) return {};
  return {table_->entry_table, layout_->retention->HasVotes()};
}

// Whether the entry table has become one of positions alone.
bool CacheHead::HasSortedPositions() const {
  return layout_->HasClasses() && !table_->runs.empty();
}

SortedPositionsId CacheHead::sorted_positions() const {
  if (!HasSortedPositions() || table_->entry_table.is_null()) return {};
  return {.object = table_->entry_table,
          .n_blocks = static_cast<int>(SortedBlocks(*layout_, progress_->n_prompt)),
          .is_wide = SortedPositions::IsWide(progress_->n_prompt)};
}

MergedLength CacheHead::merged_length() const {
  MergedLength length = {.n_entries = std::max(0, n_entries())};
  if (!layout_->HasRunsOfHeads() || table_->runs.empty()) return length;
  const SealedRun& first = table_->runs.front();
  length.n_prompt_blocks = first.is_prompt ? first.n_blocks : 0;
  length.n_sealed_blocks = static_cast<int>(table_->n_sealed());
  return length;
}

}  // namespace kvlathe
