// A cache head is a view of one KV head of the cache of a sequence, to read.
#pragma once

#include <cstddef>
#include <span>

#include "kv/blocks/head_table.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"
#include "machine/object_id.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

// A view of a few words, which is passed by value. It is valid as long as its cache is, and what it
// returns describes the cache as it is at the call.
class CacheHead {
 public:
  // All of them outlive the view.
  CacheHead(const CacheLayout& layout, const SequenceProgress& progress, const HeadTable& table,
            size_t head_idx)
      : layout_(&layout), progress_(&progress), table_(&table), head_idx_(head_idx) {}

  // The shape of a plain block. Where the layout reads whole keys, the block has them until they
  // are cut.
  BlockShape shape() const { return progress_->ShapeOf(*layout_, head_idx_); }
  // How many of the positions past the sink the head has not dropped; negative while the sink
  // fills.
  int n_entries() const {
    return static_cast<int>(progress_->n_tokens - layout_->n_sink - table_->n_dropped);
  }
  // The blocks, oldest first: entry e (position n_sink + e where none was dropped) is in block
  // e / kBlockSize. Blocks that fell out of the window of the layer are null, and those of a run in
  // runs() are packed. Valid until the next Extend or Clear.
  std::span<const ObjectId> blocks() const { return table_->blocks; }
  // The rows of the sink, K [n_sink, head_dim] and V [n_sink, rank_v]. Null when the layout has no
  // sink, when the cache is empty and when the sink fell out of the window of the layer.
  ObjectPlace sink_k() const { return {table_->sink}; }
  ObjectPlace sink_v() const;
  // The sealed runs, oldest first. Valid as blocks() is.
  std::span<const SealedRun> runs() const { return table_->runs; }
  // The run that the last step ended. It is the same in all heads unless they differ in length
  // (CacheLayout::HasRunsOfHeads). Then it is final once SetMerged was called, and n_blocks is 0 in
  // heads that have nothing to seal.
  RunExtent run_to_seal() const {
    return table_->RunAt(*layout_, progress_->n_prompt, progress_->n_tokens);
  }
  // Positions and votes of the entries; empty when every entry stays. Valid as blocks() is.
  EntryTableId entries() const;
  // Positions of the entries that were sorted where the prompt ended; null before that, and where
  // keys are stored at their positions. Valid as blocks() is.
  SortedPositionsId sorted_positions() const;
  // The state of the newest entry (OpenEntry). Null where entries are not merged.
  ObjectId open_entry() const { return table_->open_entry; }
  // What was decided of the positions from FirstUnsettled on (EvictionFlags). Null where the model
  // decides nothing of the kind.
  ObjectId flags() const { return table_->flags; }
  MergedLength merged_length() const;
  // The sum of q q^T over the queries, F32 (QueryGramBytes), to which the caller adds. Null where
  // queries are not gathered, or no longer.
  ObjectId query_gram() const { return table_->query_gram; }

 private:
  bool HasSortedPositions() const;

  const CacheLayout* layout_;
  const SequenceProgress* progress_;
  const HeadTable* table_;
  size_t head_idx_;  // of [n_layers * n_kv_heads]
};

}  // namespace kvlathe
