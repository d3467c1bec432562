// The cache of one sequence: for every layer and KV head a block table and a length of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/cache_head.h"
#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_objects.h"
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

// It keeps lengths, what must be sealed, pruned and cut, and the order of these. The objects that
// the sequence holds are the business of SequenceObjects.
class SequenceCache {
 public:
  // `layout` and `pool` outlive the cache, which gives everything back at its end. It is not
  // copyable (Copy may fail).
  SequenceCache(const CacheLayout* layout, BlockPool* pool);

  const CacheLayout& layout() const { return *layout_; }
  // Where its objects lie.
  Device& device() const { return objects_.device(); }
  // What it holds of one head.
  CacheHead head(int layer_idx, int kv_head_idx) const {
    const size_t i = static_cast<size_t>(layer_idx) * layout_->n_kv_heads + kv_head_idx;
    return {*layout_, progress_, objects_.heads()[i], i};
  }
  bool has_whole_keys(int layer_idx) const { return progress_.HasWholeKeys(*layout_, layer_idx); }
  // Where the prompt ends, for the runs (kv/seal/seal_schedule.h) and what is kept
  // (kv/retention/plan.h), and how many positions come after it (0: not known); the cache must be
  // empty. Without it the prompt does not end.
  void set_n_prompt(int64_t n_prompt, int64_t n_generated = 0);
  int64_t n_prompt() const { return progress_.n_prompt; }
  int64_t n_generated() const { return progress_.n_generated; }
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

  int n_tokens() const { return progress_.n_tokens; }  // positions made writable so far
  // Equals SequenceParts(*layout, {n_tokens(), n_new of the last Extend, n_prompt}) once the run
  // that ends there is sealed (MergedParts where entries are merged), summed over the sizes of the
  // objects held.
  KvBytes bytes() const { return objects_.bytes(progress_); }

  // --- Retention (kv/retention), after a step that ended at a prune point, layer by layer from
  // the first. ---

  bool must_prune() const { return kept_.n > 0; }
  const KeptEntries& kept() const { return kept_; }
  // Whether entries of the layer to be dropped are sealed. Then TakeKeptBlocks, PlaceKeptBlocks and
  // DropPruned follow each other, and what is left is sealed again.
  bool must_reopen(int layer_idx) const;
  // Takes plain blocks for the kept entries of every head of the layer, [n_kv_heads]; blocks() and
  // runs() of a head still tell where their rows are. kResourceExhausted when the system has no
  // memory; then nothing was taken.
  StatusOr<std::vector<std::vector<ObjectId>>> TakeKeptBlocks(int layer_idx);
  // The rows of the kept entries are in these blocks now, which take the place of all others.
  void PlaceKeptBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& kept);
  // The kept entries are the first kept().n of every head of the layer now: gives the blocks behind
  // them back. With the last layer the prune is done.
  void DropPruned(int layer_idx);
  // --- Whole keys (CacheLayout::ReadsWholeKeys), in the step that ends the prompt, layer by layer
  // from the first, behind what is dropped and before anything is sealed. ---

  bool must_cut_keys() const { return progress_.first_whole_layer < layout_->n_layers; }
  // Blocks of the layer have the layout's shape now, at the start of their objects, which shrink to
  // it. kResourceExhausted when the system has no memory: the sequence cannot go on then.
  Status ShrinkBlocks(int layer_idx);

  // What sealing entries again cost so far; not part of a saved sequence.
  const Reencoding& reencoding() const { return reencoding_; }
  Reencoding* mutable_reencoding() { return &reencoding_; }

  // --- Merging (kv/retention/merge.h), in a step, layer by layer from the first. ---

  // Of the entries that Extend made room for n_entries are left in the head: gives the blocks
  // behind them back.
  void SetMerged(int layer_idx, int kv_head_idx, int64_t n_entries);

  // --- Sealing, after a step that ended at a seal point, layer by layer from the first: of each
  // head CacheHead::run_to_seal(). ---

  bool must_seal() const { return must_seal_; }
  // Takes the objects of the runs of a layer, for the heads in order. kResourceExhausted when the
  // system has no memory; then nothing was taken.
  StatusOr<RunObjects> TakeRunObjects(int layer_idx);
  // Gives them back, of runs that could not be sealed.
  void DropRunObjects(const RunObjects& objects);
  // The objects hold the runs now: they take the place of the plain blocks, which go back. With the
  // last layer the runs are done.
  void PlaceRun(int layer_idx, const RunObjects& objects);

 private:
  void EnterNewEntries(int64_t n_after);

  const CacheLayout* layout_;
  SequenceProgress progress_;
  KeptEntries kept_;        // where the last step ended at a prune point that drops entries
  bool must_seal_ = false;  // the last step ended runs, or may have
  int64_t n_writable_ = 0;  // positions that the objects of every head hold
  SequenceObjects objects_;
  Reencoding reencoding_;
};

}  // namespace kvlathe
