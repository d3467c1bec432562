// A retention plan says how many entries of a head stay, and when entries are dropped. This is what
// the methods of the retention axis have in common; they differ in which entries they keep
// (cpu/select.h) and by whose votes.
//
// Entries are dropped at prune points. These are the end of every run of the prompt, the end of the
// prompt, and after it every `interval` positions, or, with `slack`, every position at which the
// entries have outgrown their budget by it. Prune points depend only on positions and on where the
// prompt ends, never on how a scheduler cut the prompt. All heads keep the same number of entries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/open_entry.h"
#include "machine/kept_entries.h"

namespace kvlathe {

// What statistics of merged rows are known by, as a part of file names: pool-4, dmc-12.
std::string NameOf(const MergePlan& plan);

// How many entries a head has after n positions behind the sink if each is made of `every` of them.
constexpr int64_t PooledEntries(int64_t n, int every) { return (n + every - 1) / every; }

// Where the model decides which entries leave (DMS): at a prune point those go that it let go and
// that the positions to come do not see any more. Heads keep as many of the others as they are.
struct SweepPlan {
  int window = 0;                // a position sees so many before it, whatever was decided
  std::optional<double> offset;  // in place of the model's

  friend bool operator==(const SweepPlan&, const SweepPlan&) = default;
};

// How a prompt is read again for votes, before its last token is read (PromptRepeat).
struct RepeatPlan {
  int chunk = 2048;  // positions of the prompt at a time, at least 1
  // Tokens that stand before the first chunk, before each later one, which then begins with the
  // last kCarried tokens of the chunk before it, and between that and the chunk. Without a
  // tokenizer there are none.
  std::vector<int32_t> first_words, later_words, end_words;

  static constexpr int kCarried = 8;
  // What a cache holds has the same shape whatever the words are.
  friend bool operator==(const RepeatPlan& a, const RepeatPlan& b) { return a.chunk == b.chunk; }
};

struct RetentionPlan {
  // The queries whose attention is added up as the votes for entries.
  enum class Votes {
    kNone,
    kAll,
    kLast,        // only the query at the prune point
    kPromptTail,  // the last n_recent queries of the prompt
    kRepeat,      // those that read the prompt again behind it, the largest of each counts
  };
  Votes votes = Votes::kNone;
  bool is_noisy = false;      // votes are the softmax of noisy scores (Keyformer)
  bool shares_heads = false;  // all KV heads of a layer keep the same entries
  // The heads of all layers have one budget for the prompt, as if each kept as many: where it ends,
  // those stay that have the most votes of all (SequenceCache::EndReadingAgain).
  bool joins_heads = false;
  int pool_kernel = 1;  // votes are averaged over this many neighbouring entries
  // The votes for an entry are divided by how many queries have seen it.
  bool averages_votes = false;
  // While the prompt is read, keys are stored whole and votes are taken from their scores; where
  // the prompt ends, keys are cut to the basis. It needs a basis that maps keys after RoPE.
  bool reads_whole_keys = false;

  // Of n positions ceil(keep n) are kept, sinks included, or n_kept where keep is 0.
  double keep = 0;
  int n_kept = 0;
  bool of_prompt = false;  // n is the length of the prompt, while decoding too
  // The newest positions stay whatever their votes are: the share recent_share of those that are
  // kept, or n_recent where it is 0.
  double recent_share = 0;
  int n_recent = 1;

  bool prunes_runs = true;    // while the prompt is read
  bool prunes_decode = true;  // after it
  int run = 512;              // positions of the prompt between two prune points
  int interval = 1;           // positions between two prune points after the prompt; 0 for none
  // After the prompt a head may exceed its budget by this share of it, and by at least `interval`
  // entries, before it is cut to its budget; where (1 + slack) keep reaches 1 it is never cut. At 0
  // it is cut every `interval` positions.
  double slack = 0;
  // The temperature of noisy votes is tau_init in the prompt and changes linearly to tau_end at the
  // last position that will be generated.
  double tau_init = 1, tau_end = 1;

  RepeatPlan repeat;  // used with Votes::kRepeat

  // If set, entries are merged and none is dropped, and nothing above is read.
  std::optional<MergePlan> merge;
  // If set, the model decides what is dropped, and of the above `run` and `interval` are read.
  std::optional<SweepPlan> sweep;

  bool HasVotes() const { return votes != Votes::kNone; }
  // Whether lengths alone do not say how many entries there are.
  bool ModelDecides() const {
    return sweep.has_value() || (merge.has_value() && merge->every == 0);
  }
  bool repeats_prompt() const { return votes == Votes::kRepeat; }

  friend bool operator==(const RetentionPlan&, const RetentionPlan&) = default;
};

// What a schedule depends on besides the plan.
struct PromptPlace {
  int n_sink = 0;        // first positions, which always stay and are not counted as entries
  int64_t n_prompt = 0;  // where the prompt ends
};

// How many entries stay at the prune point n_tokens.
KeptEntries KeptAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);

// The first prune point after n_tokens, counted in positions. A step never crosses one.
int64_t NextPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
bool IsPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
// The last prune point that is not after n_tokens; 0 if there is none.
int64_t LastPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);

// Whether something of the prompt is dropped where it ends.
bool DropsOfPrompt(const RetentionPlan& plan, const PromptPlace& place);

// The most positions that reading a prompt again takes at a time behind all but its last token.
int64_t MostRepeated(const RepeatPlan& plan, int64_t n_prompt);

// How many blocks a head keeps when a prune leaves n_kept of n_before entries. Room for the entries
// up to the next prune stays, so that decoding does not give a block back only to take it again.
// With slack prunes are rare, and no such room stays.
int64_t BlocksAfterPrune(const RetentionPlan& plan, int64_t n_before, int64_t n_kept);

// What a head holds when it has read n_tokens positions and has dropped what was due.
struct RetainedLength {
  int64_t n_entries = 0;
  int64_t n_blocks = 0;
  int64_t max_blocks = 0;  // the most that it held up to there, which is just before a prune
};
RetainedLength RetainedAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
// The most blocks that it holds while it grows from n_held to n_tokens positions, of a plan without
// slack. Where the prompt has not been read by n_held, those that it held before count as well.
int64_t MostBlocksBetween(const RetentionPlan& plan, const PromptPlace& place, int64_t n_held,
                          int64_t n_tokens);

// With a sweep plan: the first position of which it has not been settled yet, once n_tokens are
// there, whether it stays. Of these every head still holds all.
int64_t FirstUnsettled(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens);
// The most positions that are not settled at a time.
int MostUnsettled(const RetentionPlan& plan);

// The temperature of the votes of the query at `position`. Where n_generated is 0, how many
// positions will be generated is not known, and it is tau_init.
double TemperatureAt(const RetentionPlan& plan, const PromptPlace& place, int64_t position,
                     int64_t n_generated);

}  // namespace kvlathe
