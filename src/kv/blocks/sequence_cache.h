// The cache of one sequence has a block table and a length of its own for every layer and KV head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/cache_head.h"
#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_objects.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"
#include "machine/device.h"
#include "machine/kept_entries.h"

namespace kvlathe {

// Where a sequence begins that shares the positions of another.
struct PrefixPlace {
  int n_tokens = 0;  // that are shared, at least 1
  int64_t n_prompt = 0;
  int64_t n_generated = 0;  // as set_n_prompt has them
};

// Whether sequences that begin with all of another's prompt may share it and what follows: which of
// its positions stay depends on it alone, and they do not change behind its end. For layouts of
// which others share nothing.
bool SharesEndedPrompts(const CacheLayout& layout);

// Why sequences of this layout share nothing: what their caches hold of a prefix depends on what
// follows. Empty where it does not, and where they may share.
std::string_view WhyNothingIsShared(const CacheLayout& layout);
inline bool SharesPrefixes(const CacheLayout& layout) { return WhyNothingIsShared(layout).empty(); }

// A sequence that has been saved.
struct SavedPrefix {
  int n_tokens = 0;
  int64_t n_prompt = 0;
};
// What SequenceCache::MostShareable will be once it is restored.
int MostShareable(const CacheLayout& layout, const SavedPrefix& saved, int n_most,
                  int64_t n_prompt);

// The cache keeps the lengths of the sequence, and knows what must be sealed, pruned and cut and in
// which order. SequenceObjects holds the objects.
class SequenceCache {
 public:
  // `layout` and `pool` outlive the cache, which gives everything back when it is destroyed. It has
  // no copy constructor because a copy may fail (Copy).
  SequenceCache(const CacheLayout* layout, BlockPool* pool);
  ~SequenceCache();
  // The journal of its pool, null where there is none, and the number of the cache there.
  CacheJournal* journal() const { return objects_.pool()->journal(); }
  int64_t number() const { return number_; }
  // Whether the journal is told what is done; not while the cache is filled otherwise than by
  // steps, of which it is told at once (RestoreParts).
  void set_told(bool is_told) { is_told_ = is_told; }

  const CacheLayout& layout() const { return *layout_; }
  // The device whose memory holds the objects.
  Device& device() const { return objects_.device(); }
  // What it holds of one head.
  CacheHead head(int layer_idx, int kv_head_idx) const {
    const size_t i = static_cast<size_t>(layer_idx) * layout_->n_kv_heads + kv_head_idx;
    return {*layout_, progress_, objects_.heads()[i], i};
  }
  bool has_whole_keys(int layer_idx) const { return progress_.HasWholeKeys(*layout_, layer_idx); }
  // Says where the prompt ends, which decides the runs (kv/seal/seal_schedule.h) and what is kept
  // (kv/retention/retention_plan.h), and how many positions come after it (0 if that is not known).
  // The cache must be empty. Without this call the prompt does not end.
  void set_n_prompt(int64_t n_prompt, int64_t n_generated = 0);
  int64_t n_prompt() const { return progress_.n_prompt; }
  int64_t n_generated() const { return progress_.n_generated; }
  // The most positions that the next Extend may add.
  int64_t max_step() const;
  // Whether the prompt is to be read again on trial now, before its last token (PromptRepeat).
  // Extend stops before that token until EndReadingAgain.
  bool must_read_again() const;
  // Says that it has been, and all of that taken back. Where heads have numbers of their own, it
  // chooses by the votes of all how many entries each keeps.
  void EndReadingAgain();
  // Says that the votes of its prompt are not asked for: it is filled with rows that were saved.
  void SkipReadingAgain() { has_read_again_ = true; }
  // What EndReadingAgain chose in a cache that is saved, [n_layers * n_kv_heads], each at least 1.
  void SetToKeep(std::span<const int64_t> n_to_keep);
  // Whether the positions on trial are those of the prompt that is read again.
  bool reads_again() const { return is_on_trial() && n_settled() < n_prompt(); }

  // Makes positions [n_tokens, n_tokens + n_new) writable in every head, or none of them; n_new is
  // at most max_step(). Where a run ends there, room to seal it is set aside as well. The error is
  // kResourceExhausted, with what is needed and what is free, when the budget does not hold them,
  // and kDataLoss when the step before failed and did not finish what it had to seal, drop or cut,
  // and kFailedPrecondition where must_read_again(). The call costs one comparison when no head
  // needs a block. New rows are undefined until they are written. In layers with a window, blocks
  // and sinks that none of the new positions can see are given back first, and stay so when there
  // is no room after all.
  Status Extend(int n_new);
  // Gives everything back.
  void Clear();

  // --- Positions that may not stay (sequence_trial.cc): drafts, and a text that is read for the
  // votes alone. ---

  // As Extend, of any number of positions, but none of them ends a run or the prompt, and nothing
  // is dropped, cut or sealed for them: they are plain rows until TakeBack, which must come before
  // the next Extend. A prompt that they go beyond has not ended.
  Status ExtendOnTrial(int n_new);
  bool is_on_trial() const { return progress_.n_on_trial > 0; }
  int n_settled() const { return progress_.n_settled(); }  // positions that no trial has added
  // The fewest positions to which TakeBack may go: those that were there before the last Extend, or
  // before the first ExtendOnTrial behind it. Where the last Extend ended a run, the prompt or a
  // prune interval, what it ended stays: those behind it.
  int n_least() const { return n_least_; }
  // Forgets all but the first n_tokens positions, at least n_least() and at least 1, between steps.
  // The cache holds the bytes that it would hold had the others never come. Where positions on
  // trial are kept, nothing may end among them. What forgotten rows have added to votes (retention)
  // and to Gram matrices of queries (GathersQueries) stays; where entries are merged the call is
  // not allowed.
  void TakeBack(int n_tokens);
  // Returns another sequence of the same layout and pool that holds the same bytes and goes on as
  // this one would; neither knows of the other. The error is kResourceExhausted when there is no
  // room, and then nothing was taken, and kDataLoss as from Extend. Between Extend and the end of
  // its step the new rows of the copy are undefined too.
  StatusOr<std::unique_ptr<SequenceCache>> Copy() const;

  // --- Sharing (sequence_prefix.cc). Two sequences that begin with the same tokens may hold the
  // objects of their common positions together, as long as neither writes in them. What a sequence
  // holds of a position never changes where SharesPrefixes(layout), but for which blocks are sealed
  // in which runs; so what is compared is the runs. ---

  // Whether the first n_tokens positions are held here, bit for bit, as a sequence whose prompt
  // ends at n_prompt holds them when it has read so many. A step may be under way, but not where
  // SharesEndedPrompts(layout): there a prompt must have ended.
  bool CanShare(int n_tokens, int64_t n_prompt) const;
  // The most positions up to n_most for which CanShare says yes; 0 when there are none.
  int MostShareable(int n_most, int64_t n_prompt) const;
  // Whether every sequence that could share positions of `other`, which holds the same tokens as
  // far as it goes, could share them of this one.
  bool Covers(const SequenceCache& other) const;
  // Another sequence with the first place.n_tokens positions of this one, for which CanShare says
  // yes; all of it by reference. It is only there to be shared: this sequence may go on and write
  // behind those positions. Rows of a step that is under way count once it has ended well; then
  // room is set aside to seal beside the plain blocks that are shared. The error is
  // kResourceExhausted when there is no room, and then nothing was taken.
  StatusOr<std::unique_ptr<SequenceCache>> Keep(const PrefixPlace& place);
  // The same, but one that can be extended: objects in which it will write are copied.
  StatusOr<std::unique_ptr<SequenceCache>> Fork(const PrefixPlace& place) const;

  // Says that the cache, which nobody extends any more, is only kept to be shared: what nobody else
  // holds counts as PoolUsage::kept_bytes until it is cleared.
  void SetKept();

  int n_tokens() const { return progress_.n_tokens; }  // positions made writable so far
  // The sum of the sizes of the objects that the sequence holds. Once the run that ends at
  // n_tokens() is sealed, it equals SequenceParts(*layout, {n_tokens(), n_new of the last Extend,
  // n_prompt, pressed_runs()}), or MergedParts where entries are merged.
  KvBytes bytes() const { return objects_.bytes(progress_); }

  // --- Retention (kv/retention). These are called after a step that ended at a prune point, layer
  // by layer from the first. ---

  bool must_prune() const { return kept_.n > 0; }
  const KeptEntries& kept() const { return kept_; }  // where heads have no numbers of their own
  // Of a head of [n_layers * n_kv_heads].
  int64_t n_to_keep(size_t head_idx) const {
    const int64_t of_head = objects_.heads()[head_idx].n_to_keep;
    return of_head > 0 ? of_head : kept_.n;
  }
  // Whether some of the entries that the layer drops are sealed. Then TakeKeptBlocks,
  // PlaceKeptBlocks and DropPruned are called in this order, and what is left is sealed again.
  bool must_reopen(int layer_idx) const;
  // Takes plain blocks for the kept entries of every head of the layer, [n_kv_heads]; blocks() and
  // runs() of a head still say where the rows are. The error is kResourceExhausted when the system
  // has no memory, and then nothing was taken.
  StatusOr<std::vector<std::vector<ObjectId>>> TakeKeptBlocks(int layer_idx);
  // The rows of the kept entries are in these blocks now, which take the place of all others.
  void PlaceKeptBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& kept);
  // Gives back the blocks behind the kept entries, which are the first n_to_keep() entries of every
  // head of the layer by now. With the last layer the prune is done.
  void DropPruned(int layer_idx);
  // --- Whole keys (CacheLayout::ReadsWholeKeys). They are cut in the step that ends the prompt,
  // layer by layer from the first, after entries were dropped and before anything is sealed. ---

  bool must_cut_keys() const { return progress_.first_whole_layer < layout_->n_layers; }
  // Shrinks the objects of the layer's blocks to the layout's shape, which the blocks have by now
  // at the start of their objects. The error is kResourceExhausted when the system has no memory,
  // and then the sequence cannot go on.
  Status ShrinkBlocks(int layer_idx);

  // Says that a step failed for this sequence: its rows mean nothing any more, and it neither grows
  // nor is copied until it is cleared.
  void SetFailed();
  bool has_failed() const { return has_failed_; }

  // What sealing entries again has cost so far. A saved sequence does not hold it.
  const Reencoding& reencoding() const { return reencoding_; }
  Reencoding* mutable_reencoding() { return &reencoding_; }

  // --- Merging (format/open_entry.h), and leaving where the model decides it
  // (format/eviction_flags.h). It happens within a step, layer by layer from the first. ---

  // Says that n_entries are left in the head of those that Extend made room for, and gives back the
  // blocks behind them.
  void SetMerged(int layer_idx, int kv_head_idx, int64_t n_entries);

  // --- Sealing. After a step that ended at a seal point, the run_to_seal() of each head is sealed,
  // layer by layer from the first. ---

  bool must_seal() const { return must_seal_; }
  // Takes the objects of the runs of a layer, for the heads in order. The error is
  // kResourceExhausted when the system has no memory, and then nothing was taken.
  StatusOr<RunObjects> TakeRunObjects(int layer_idx);
  // Puts the objects, which hold the runs by now, in the place of the plain blocks, which are given
  // back. With the last layer the runs are done.
  void PlaceRun(int layer_idx, const RunObjects& objects);

  // --- Pressure (CacheLayout::HasPressedRuns, sequence_pressure.cc). Model::PressRun seals a run
  // again, between steps or once a step was extended for. ---

  // The place of the oldest run that takes less room once it is pressed, which is in no other
  // sequence; none where there is no such run.
  std::optional<int> RunToPress() const;
  // Makes the run a pressed one, whose blocks have room for its pressed codes and nothing else; the
  // caller writes these. The error is kResourceExhausted when the system has no memory, and then
  // nothing has changed.
  Status PressRun(int run_idx);
  // The places of the runs that were pressed, rising.
  std::vector<int> pressed_runs() const;
  int64_t n_pressed() const;  // positions of these
  // How many bytes these runs would take more had they not been.
  int64_t bytes_pressed_off() const;

 private:
  // Whether a step has failed, or broke off in the middle.
  bool is_broken() const { return has_failed_ || must_seal() || must_prune() || must_cut_keys(); }
  // Where it cannot go on; `verb` is what was asked.
  Status CheckWhole(std::string_view verb) const;
  Status CheckLength(int64_t n_after) const;
  // Remembers where TakeBack may go, before a step.
  void NoteBlocks();
  void EnterNewEntries(int64_t n_after);
  bool CanShareEndedPrompt(int n_tokens, int64_t n_prompt) const;
  StatusOr<std::unique_ptr<SequenceCache>> Share(const PrefixPlace& place, bool to_write) const;

  CacheJournal* told() const { return is_told_ ? journal() : nullptr; }

  const CacheLayout* layout_;
  bool is_told_ = true;
  int64_t number_ = 0;
  SequenceProgress progress_;
  KeptEntries kept_;        // where the last step ended at a prune point that drops entries
  bool must_seal_ = false;  // the last step ended runs, or may have
  bool has_failed_ = false;
  bool has_read_again_ = false;  // its prompt
  int64_t n_writable_ = 0;       // positions that the objects of every head hold
  int n_least_ = 0;
  std::vector<int64_t> blocks_at_least_;  // that heads had at n_least_, or empty: what they have
  SequenceObjects objects_;
  Reencoding reencoding_;
};

}  // namespace kvlathe
