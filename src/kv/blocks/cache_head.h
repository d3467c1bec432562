// One KV head of the cache of a sequence, to read.
#pragma once

#include <cstddef>
#include <span>

#include "device/object_id.h"
#include "device/sealed_runs.h"
#include "kv/blocks/head_table.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {

// A view: a handful of words, to be passed by value. It is valid as long as its cache is; what it
// returns tells of the cache as it is at the call.
class CacheHead {
 public:
  // All of them outlive the view.
  CacheHead(const CacheLayout& layout, const SequenceProgress& progress, const HeadTable& table,
            size_t head_idx)
      : layout_(&layout), progress_(&progress), table_(&table), head_idx_(head_idx) {}

  // Of a plain block: with whole keys where the layout reads them, until they are cut.
  BlockShape shape() const { return progress_->ShapeOf(*layout_, head_idx_); }
  // Of the positions past the sink, those that the head has not dropped; negative while the sink
  // fills.
  int n_entries() const {
    return static_cast<int>(progress_->n_tokens - layout_->n_sink - table_->n_dropped);
  }
  // Oldest first; entry e (position n_sink + e) is in block e / kBlockSize. Those that fell out of
  // the window of the layer are null, those of a run in runs() are packed. Valid until the next
  // Extend or Clear.
  std::span<const ObjectId> blocks() const { return table_->blocks; }
  // Sink rows: K [n_sink, head_dim] and V [n_sink, rank_v]; null when the layout has no sink or
  // the cache is empty.
  ObjectPlace sink_k() const { return {table_->sink}; }
  ObjectPlace sink_v() const;
  // The sealed runs, oldest first. Valid as blocks() is.
  std::span<const SealedRun> runs() const { return table_->runs; }
  // The same in all heads, but where they differ in length (CacheLayout::HasRunsOfHeads). There it
  // is final once SetMerged was called, and n_blocks is 0 in heads that have nothing to seal.
  RunExtent run_to_seal() const {
    return table_->RunAt(*layout_, progress_->n_prompt, progress_->n_tokens);
  }
  // Positions and votes of the entries; empty when every entry stays. Valid as blocks() is.
  EntryTableId entries() const;
  // State of the newest entry (OpenEntry); null where entries are not merged.
  ObjectId open_entry() const { return table_->open_entry; }
  MergedLength merged_length() const;
  // Sum of q q^T over the queries, F32 (QueryGramBytes), for the caller to add to; null where they
  // are not gathered, or not any more.
  ObjectId query_gram() const { return table_->query_gram; }

 private:
  const CacheLayout* layout_;
  const SequenceProgress* progress_;
  const HeadTable* table_;
  size_t head_idx_;  // of [n_layers * n_kv_heads]
};

}  // namespace kvlathe
