// The cache of one sequence: for every layer and KV head a block table and a length of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "device/sealed_runs.h"
#include "kv/blocks/block_pool.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {

// Sums over the entries of all heads that were sealed more than once, each time but the first.
struct Reencoding {
  int64_t n_times = 0;  // prune points at which sealed entries were dropped
  int64_t n_rows = 0;
  // Squared distances of rows before and after, and squared rows, of K and of V as they are stored.
  double k_error = 0, k_norm = 0, v_error = 0, v_norm = 0;

  void Add(const Reencoding& more) {
    n_times += more.n_times;
    n_rows += more.n_rows;
    k_error += more.k_error;
    k_norm += more.k_norm;
    v_error += more.v_error;
    v_norm += more.v_norm;
  }
};

class SequenceCache {
 public:
  // `layout` and `pool` outlive the cache.
  SequenceCache(const CacheLayout* layout, BlockPool* pool);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  const CacheLayout& layout() const { return *layout_; }
  // Where its objects lie.
  Device& device() const { return pool_->device(); }
  // Of a plain block of the head: with whole keys where the layout reads them, until they are cut.
  BlockShape shape(int layer_idx, int kv_head_idx) const;
  bool has_whole_keys(int layer_idx) const;
  // Where the prompt ends, for the runs (kv/seal/seal_schedule.h) and what is kept
  // (kv/retention/plan.h), and how many positions come after it (0: not known); the cache must be
  // empty. Without it the prompt does not end.
  void set_n_prompt(int64_t n_prompt, int64_t n_generated = 0);
  int64_t n_prompt() const { return n_prompt_; }
  int64_t n_generated() const { return n_generated_; }
  // The most positions that the next Extend may add.
  int64_t max_step() const;

  // Makes positions [n_tokens, n_tokens + n_new) writable in every head: all or nothing, n_new at
  // most max_step(). Where a run ends there, room to seal it is set aside as well.
  // kResourceExhausted, with what is needed and what is free, when the budget does not hold them;
  // kDataLoss when the last step did not finish what it had to seal, drop or cut, because it
  // failed. Costs a comparison when no head needs a block. New rows are undefined until written.
  // With a window, blocks of its layer that none of the new positions can see are given back first,
  // also when there is then no room.
  Status Extend(int n_new);
  // Gives everything back.
  void Clear();
  // Another sequence of the same layout and pool that holds the same bytes and goes on as this one
  // would; neither knows of the other. kResourceExhausted without room, and then nothing was taken;
  // kDataLoss as from Extend. Between Extend and the end of its step rows are undefined here too.
  StatusOr<std::unique_ptr<SequenceCache>> Copy() const;

  int n_tokens() const { return n_tokens_; }  // positions made writable so far
  // Of those past the sink, what a head has not dropped; negative while the sink fills.
  int n_entries(int layer_idx, int kv_head_idx) const;
  // Equals SequenceParts(*layout, {n_tokens(), n_new of the last Extend, n_prompt}) once the run
  // that ends there is sealed (MergedParts where entries are merged), summed over the sizes of the
  // objects held.
  KvBytes bytes() const;

  // Blocks of one head, oldest first; entry e (position n_sink + e) is in block e / kBlockSize.
  // Those that fell out of the window of the layer are null, those of a run in runs() are packed.
  // Valid until the next Extend or Clear.
  std::span<const ObjectId> blocks(int layer_idx, int kv_head_idx) const;
  // Sink rows: K [n_sink, head_dim] and V [n_sink, rank_v]; null when the layout has no sink or
  // the cache is empty.
  ObjectPlace sink_k(int layer_idx, int kv_head_idx) const;
  ObjectPlace sink_v(int layer_idx, int kv_head_idx) const;

  // --- Retention (kv/retention), after a step that ended at a prune point, layer by layer from
  // the first. ---

  // Positions and votes of the entries of one head; empty when every entry stays. Valid as blocks()
  // is.
  EntryTableId entries(int layer_idx, int kv_head_idx) const;
  bool must_prune() const { return kept_.n > 0; }
  const KeptEntries& kept() const { return kept_; }
  // Whether entries of the layer to be dropped are sealed. Then TakeKeptBlocks, PlaceKeptBlocks and
  // DropPruned follow each other, and what is left is sealed again.
  bool must_reopen(int layer_idx) const;
  // Takes plain blocks for the kept entries of every head of the layer, [n_kv_heads]; blocks() and
  // runs() still tell where their rows are. kResourceExhausted when the system has no memory; then
  // nothing was taken.
  StatusOr<std::vector<std::vector<ObjectId>>> TakeKeptBlocks(int layer_idx);
  // The rows of the kept entries are in these blocks now, which take the place of all others.
  void PlaceKeptBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& kept);
  // The kept entries are the first kept().n of every head of the layer now: gives the blocks behind
  // them back. With the last layer the prune is done.
  void DropPruned(int layer_idx);
  // --- Whole keys (CacheLayout::ReadsWholeKeys), in the step that ends the prompt, layer by layer
  // from the first, behind what is dropped and before anything is sealed. ---

  bool must_cut_keys() const { return first_whole_layer_ < layout_->n_layers; }
  // Blocks of the layer have the layout's shape now, at the start of their objects, which shrink to
  // it. kResourceExhausted when the system has no memory: the sequence cannot go on then.
  Status ShrinkBlocks(int layer_idx);

  // What sealing entries again cost so far; not part of a saved sequence.
  const Reencoding& reencoding() const { return reencoding_; }
  Reencoding* mutable_reencoding() { return &reencoding_; }

  // --- Merging (kv/retention/merge.h), in a step, layer by layer from the first. ---

  // State of the newest entry of a head (OpenEntry); null where entries are not merged.
  ObjectId open_entry(int layer_idx, int kv_head_idx) const;
  // Of the entries that Extend made room for n_entries are left in the head: gives the blocks
  // behind them back.
  void SetMerged(int layer_idx, int kv_head_idx, int64_t n_entries);
  MergedLength merged_length(int layer_idx, int kv_head_idx) const;

  // Sum of q q^T over the queries of one head, F32 (QueryGramBytes), for the caller to add to; null
  // where they are not gathered, or not any more.
  ObjectId query_gram(int layer_idx, int kv_head_idx) const;

  // The sealed runs of one head, oldest first. Valid as blocks() is.
  std::span<const SealedRun> runs(int layer_idx, int kv_head_idx) const;

  // --- Sealing, after a step that ended at a seal point, layer by layer from the first. ---

  bool must_seal() const { return must_seal_; }
  // Of a head of the layer that is next: the same in all heads, but where they differ in length
  // (CacheLayout::HasRunsOfHeads). There it is final once SetMerged was called, and n_blocks is 0
  // in heads that have nothing to seal.
  RunExtent run_to_seal(int layer_idx, int kv_head_idx) const;
  // Takes the objects of the runs of a layer, for the heads in order; null where they would have no
  // bytes. kResourceExhausted when the system has no memory; then nothing was taken.
  struct RunObjects {
    std::vector<std::vector<ObjectId>> packed;  // [n_kv_heads][n_blocks]
    std::vector<ObjectId> records;              // [n_kv_heads]
    // [n_kv_heads], the same for the heads that share it, with a reference each.
    std::vector<ObjectId> layer_records;
  };
  StatusOr<RunObjects> TakeRunObjects(int layer_idx);
  // Gives them back, of runs that could not be sealed.
  void DropRunObjects(const RunObjects& objects);
  // The objects hold the runs now: they take the place of the plain blocks, which go back. With the
  // last layer the runs are done.
  void PlaceRun(int layer_idx, const RunObjects& objects);

 private:
  struct HeadTable;
  bool CopyBlocks(const HeadTable& from, HeadTable* to);
  bool CopyRuns(const HeadTable& from, HeadTable* to, std::map<ObjectId, ObjectId>* shared);
  void ReleaseOutOfWindow();
  void ReleaseBlocksBehind(int64_t n_blocks, HeadTable* head);
  void ReleaseBlock(HeadTable* head, int64_t block_idx);
  void ReleaseRecords(SealedRun* run);
  void PlaceRunOfHead(int layer_idx, int kv_head_idx, const RunObjects& objects);
  RunExtent NextRun(int64_t n_tokens, const HeadTable& head) const;
  std::vector<RunExtent> NextRuns(int64_t n_tokens) const;
  int64_t RunTableBytesWith(const std::vector<RunExtent>& runs, size_t head_idx) const;
  int64_t SealRoom(int64_t n_tokens, const std::vector<RunExtent>& runs, int first_layer) const;
  void SetRoomAside(int first_layer);
  bool NeedsQueryGram(const HeadTable& head) const;
  int64_t MissingBytes(int64_t n_tokens, const std::vector<RunExtent>& runs) const;
  bool AllocateObjects(int64_t n_tokens, std::vector<ObjectId>* objects);
  bool GrowTables(int64_t n_tokens, const std::vector<RunExtent>& runs);
  template <typename T>
  bool SetTableSize(int64_t n_bytes, std::vector<T>* table, int64_t* table_bytes);
  bool SetEntryTableSize(int64_t n_bytes, HeadTable* head);
  BlockShape ShapeOf(size_t head_idx) const;
  int64_t BlocksReleased(int layer_idx) const {  // of each head, from the oldest
    return BlocksOutOfWindow(*layout_, layer_idx, released_at_);
  }
  int64_t BlocksOf(const HeadTable& head, int64_t n_tokens) const;
  int64_t EntryBytesFor(int64_t n_blocks) const;
  void CountWritable();
  void EnterNewEntries(int64_t n_tokens);
  void EnterPositions(const HeadTable& head, Range positions, int64_t n_gone);
  Status NoRoom(int n_new, int64_t needed_bytes) const;

  const CacheLayout* layout_;
  BlockPool* pool_;
  int n_tokens_ = 0;
  int64_t n_prompt_ = kEndlessPrompt;
  int64_t n_generated_ = 0;
  KeptEntries kept_;         // where the last step ended at a prune point that drops entries
  bool must_seal_ = false;   // the last step ended runs, or may have
  int first_whole_layer_;    // once the prompt has ended: from here on keys are to be cut
  int64_t aside_bytes_ = 0;  // of the pool, for sealing one layer
  int64_t released_at_ = 0;  // blocks that no position from here on can see have been given back
  int64_t n_writable_ = 0;   // positions that the objects of every head hold
  std::vector<HeadTable> heads_;  // [n_layers * n_kv_heads]
  Reencoding reencoding_;
};

}  // namespace kvlathe
