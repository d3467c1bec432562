#include "kv/blocks/cache_head.h"

#include <algorithm>

namespace kvlathe {

ObjectPlace CacheHead::sink_v() const {
  return {table_->sink, int64_t{layout_->n_sink} * layout_->head_dim *
                            SizeOf(layout_->shapes[head_idx_].row_type)};
}

EntryTableId CacheHead::entries() const {
  if (!layout_->DropsEntries()) return {};
  return {table_->entry_table, layout_->retention->HasVotes()};
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
