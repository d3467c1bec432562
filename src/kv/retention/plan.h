// How many entries of a head stay, and when entries are dropped: what the methods of the retention
// axis have in common. What they differ in is which entries (select.h) and by whose votes.
//
// Entries are dropped at prune points: where a run of the prompt ends, where the prompt ends, and
// every `interval` positions after it, or where entries have outgrown their budget by `slack`. They
// depend on positions and on where the prompt ends alone, never on how a scheduler cut the prompt.
// All heads keep the same number of entries.
#pragma once

#include <cstdint>
#include <optional>

namespace kvlathe {

// Consecutive positions of a head that become one entry (merge.h).
struct MergePlan {
  int every = 0;   // positions per entry; 0: the model decides for each position (DMC)
  int window = 0;  // newest positions of an entry that count in its mean; 0: all

  friend bool operator==(const MergePlan&, const MergePlan&) = default;
};

struct RetentionPlan {
  // Queries whose attention is added up for the entries.
  enum class Votes {
    kNone,
    kAll,
    kLast,        // the query at the prune point alone
    kPromptTail,  // the last n_recent of the prompt
  };
  Votes votes = Votes::kNone;
  bool is_noisy = false;      // votes are softmax of noisy scores (Keyformer)
  bool shares_heads = false;  // all KV heads of a layer keep the same entries
  int pool_kernel = 1;        // votes are averaged over so many neighbours
  // While the prompt is read keys are stored whole, and votes are taken from their scores. Of a
  // basis that maps keys after RoPE only; where the prompt ends they are cut to it.
  bool reads_whole_keys = false;

  // Positions kept of n, sinks included: ceil(keep n), or a number where keep is 0.
  double keep = 0;
  int n_kept = 0;
  bool of_prompt = false;  // n is the prompt, while decoding too
  // The newest of them stay whatever their votes: a share of the kept, or a number where that is 0.
  double recent_share = 0;
  int n_recent = 1;

  bool prunes_runs = true;    // while the prompt is read
  bool prunes_decode = true;  // after it
  int run = 512;              // positions of the prompt between two prune points
  int interval = 1;           // positions between two prune points after the prompt; 0: none
  // After the prompt a head may hold this share of its budget beyond it, at least `interval`
  // entries, before it is cut to it; where (1 + slack) keep reaches 1 it never is. 0: cut every
  // `interval` positions.
  double slack = 0;
  // Of noisy votes: at the prompt, and at the last position to be generated; linear in between.
  double tau_init = 1, tau_end = 1;

  // Entries are merged and none is dropped: nothing above matters.
  std::optional<MergePlan> merge;

  bool HasVotes() const { return votes != Votes::kNone; }

  friend bool operator==(const RetentionPlan&, const RetentionPlan&) = default;
};

// What a schedule depends on beside the plan.
struct PromptPlace {
  int n_sink = 0;        // positions that are no entries and always stay
  int64_t n_prompt = 0;  // where the prompt ends
};

// Entries that stay at prune point n_tokens, at least 1, and how many of them are the newest.
struct KeptEntries {
  int64_t n = 0;
  int64_t n_recent = 0;
};
KeptEntries KeptAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);

// The next position count after n_tokens at which entries may be dropped. A step never crosses one.
int64_t NextPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
bool IsPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
// The last prune point up to n_tokens; 0 before the first.
int64_t LastPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);

// Blocks that a head keeps when a prune leaves n_kept of n_before entries: room for the entries up
// to the next prune stays, so that a decode does not give a block back and take it again. With
// slack none does: prunes are rare.
int64_t BlocksAfterPrune(const RetentionPlan& plan, int64_t n_before, int64_t n_kept);

// What a head holds once n_tokens positions are there and what was due is dropped.
struct RetainedLength {
  int64_t n_entries = 0;
  int64_t n_blocks = 0;
  int64_t max_blocks = 0;  // the most on the way, before each prune
};
RetainedLength RetainedAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);

// Temperature of the votes of the query at `position`; n_generated 0: not known, tau_init.
double TemperatureAt(const RetentionPlan& plan, const PromptPlace& place, int64_t position,
                     int64_t n_generated);

}  // namespace kvlathe
