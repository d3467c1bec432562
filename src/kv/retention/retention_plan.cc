#include "kv/retention/retention_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/units.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

int64_t BlocksOf(int64_t n_entries) { return RoundUp(n_entries, kBlockSize) / kBlockSize; }

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The prune point after `last`, at or behind the prompt's end: the first position count at which
// n_entries, those that `last` left, and one more per position exceed the budget by the slack.
int64_t NextCut(const RetentionPlan& plan, const PromptPlace& place, int64_t last,
                int64_t n_entries) {
  const double growth = plan.of_prompt ? 0 : plan.keep;  // of the budget, per position
  const double net_growth = 1 - (1 + plan.slack) * growth;
  constexpr double kStandstill = 1e-3;
  if (net_growth < kStandstill) return kNever;
  const auto is_due = [&](int64_t at) {
    const auto budget = static_cast<double>(KeptAt(plan, place, at).n);
    const double excess = static_cast<double>(n_entries + at - last) - budget;
    return excess >= std::max<double>(plan.interval, plan.slack * budget);
  };
  // Not before this, as budgets are never below the share that they round up; from here few steps
  // are left.
  const double share = growth > 0 ? growth * static_cast<double>(last) - place.n_sink
                                  : static_cast<double>(KeptAt(plan, place, last).n);
  const auto entries = static_cast<double>(n_entries);
  const double to_go = std::max((share + plan.interval - entries) / (1 - growth),
                                ((1 + plan.slack) * share - entries) / net_growth);
  int64_t at = last + std::max<int64_t>(1, static_cast<int64_t>(to_go) - 1);
  while (!is_due(at)) ++at;
  return at;
}

// The last prune point up to n_tokens, at or behind the prompt's end.
int64_t LastCut(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  const int64_t n_seen = std::max<int64_t>(0, place.n_prompt - place.n_sink);
  int64_t at = place.n_prompt;
  int64_t n_entries = std::min(n_seen, KeptAt(plan, place, at).n);
  for (;;) {
    const int64_t next = NextCut(plan, place, at, n_entries);
    if (next > n_tokens) return at;
    const bool is_periodic = plan.of_prompt || plan.keep == 0;
    if (is_periodic && at > place.n_prompt) return n_tokens - (n_tokens - at) % (next - at);
    at = next;
    n_entries = KeptAt(plan, place, at).n;
  }
}

// Entries on both sides of prune points. What is kept grows by at most one per position, so a head
// that was cut to its budget once is at its budget at every later prune point.
struct Ladder {
  const RetentionPlan& plan;
  const PromptPlace& place;

  int64_t Seen(int64_t n_tokens) const { return std::max<int64_t>(0, n_tokens - place.n_sink); }
  int64_t After(int64_t point) const {
    return point <= 0 ? 0 : std::min(Seen(point), KeptAt(plan, place, point).n);
  }
  int64_t Before(int64_t point) const {
    const int64_t previous = LastPrunePoint(plan, place, point - 1);
    return After(previous) + Seen(point) - Seen(previous);
  }
};

}  // namespace

std::string NameOf(const MergePlan& plan) {
  return plan.every > 0 ? "pool-" + std::to_string(plan.every)
                        : "dmc-" + std::to_string(plan.window);
}

int64_t LastPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  if (n_tokens >= place.n_prompt) {
    if (!plan.prunes_decode) return place.n_prompt;
    if (plan.slack > 0) return LastCut(plan, place, n_tokens);
    return n_tokens - (n_tokens - place.n_prompt) % plan.interval;
  }
  const int64_t n_seen = n_tokens - place.n_sink;
  if (!plan.prunes_runs || n_seen < plan.run) return 0;
  return n_tokens - n_seen % plan.run;
}

KeptEntries KeptAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  const bool is_known = place.n_prompt < (int64_t{1} << 62);
  const int64_t n = plan.of_prompt && is_known ? place.n_prompt : n_tokens;
  // Shares as they are typed: 0.1 of 30 is 3, whatever the binary fraction says.
  constexpr double kRounding = 1e-9;
  const double wanted =
      plan.keep > 0 ? std::ceil(plan.keep * static_cast<double>(n) - kRounding) : plan.n_kept;
  const int64_t n_kept = static_cast<int64_t>(wanted);
  const int64_t n_recent =
      plan.recent_share > 0
          ? static_cast<int64_t>(plan.recent_share * static_cast<double>(n_kept) + kRounding)
          : plan.n_recent;
  KeptEntries kept;
  kept.n_recent = std::max<int64_t>(1, n_recent);
  // A small share never takes the newest away.
  const int64_t least = plan.recent_share > 0 ? 1 : kept.n_recent;
  kept.n = std::max(least, n_kept - place.n_sink);
  kept.n_recent = std::min(kept.n_recent, kept.n);
  return kept;
}

int64_t NextPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  if (n_tokens < place.n_prompt) {
    if (!plan.prunes_runs) return place.n_prompt;
    const int64_t n_runs = std::max<int64_t>(0, n_tokens - place.n_sink) / plan.run;
    return std::min(place.n_prompt, place.n_sink + (n_runs + 1) * plan.run);
  }
  if (!plan.prunes_decode) return kNever;
  if (plan.slack > 0) {
    const int64_t last = LastCut(plan, place, n_tokens);
    return NextCut(plan, place, last, Ladder{plan, place}.After(last));
  }
  const int64_t n_done = (n_tokens - place.n_prompt) / plan.interval;
  return place.n_prompt + (n_done + 1) * plan.interval;
}

bool IsPrunePoint(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  return n_tokens > 0 && NextPrunePoint(plan, place, n_tokens - 1) == n_tokens;
}

bool DropsOfPrompt(const RetentionPlan& plan, const PromptPlace& place) {
  return KeptAt(plan, place, place.n_prompt).n < place.n_prompt - place.n_sink;
}

int64_t MostRepeated(const RepeatPlan& plan, int64_t n_prompt) {
  const int64_t n_context = n_prompt - 1;
  const int64_t n_end = std::ssize(plan.end_words),
                n_chunk = std::min<int64_t>(plan.chunk, n_context);
  int64_t n_words = std::ssize(plan.first_words);
  if (n_context > plan.chunk) {
    const int64_t n_carried = std::min<int64_t>(RepeatPlan::kCarried, plan.chunk);
    n_words = std::max(n_words, std::ssize(plan.later_words) + n_carried);
  }
  return n_words + n_end + n_chunk;
}

int64_t BlocksAfterPrune(const RetentionPlan& plan, int64_t n_before, int64_t n_kept) {
  return BlocksOf(plan.slack > 0 ? n_kept : std::min(n_before, n_kept + plan.interval));
}

RetainedLength RetainedAt(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  const Ladder ladder{plan, place};
  const int64_t last = LastPrunePoint(plan, place, n_tokens);
  RetainedLength length;
  length.n_entries = ladder.After(last) + ladder.Seen(n_tokens) - ladder.Seen(last);
  length.n_blocks = BlocksOf(length.n_entries);
  if (last > 0) {
    const int64_t held = BlocksAfterPrune(plan, ladder.Before(last), ladder.After(last));
    length.n_blocks = std::max(length.n_blocks, held);
  }
  // Heads that keep numbers of their own have another block each that is not full, at most.
  if (plan.joins_heads && last == place.n_prompt && DropsOfPrompt(plan, place)) {
    length.n_blocks = std::min(length.n_blocks + 1, BlocksOf(ladder.Seen(n_tokens)));
  }
  // What a prune finds grows from one to the next of equal steps, so the last of each kind has
  // most.
  length.max_blocks = length.n_blocks;
  const int64_t in_prompt = std::min(n_tokens, place.n_prompt);
  for (const int64_t at :
       {last, LastPrunePoint(plan, place, in_prompt), LastPrunePoint(plan, place, in_prompt - 1)}) {
    if (at > 0) length.max_blocks = std::max(length.max_blocks, BlocksOf(ladder.Before(at)));
  }
  if (plan.repeats_prompt() && n_tokens >= place.n_prompt && DropsOfPrompt(plan, place)) {
    const int64_t n_positions = place.n_prompt - 1 + MostRepeated(plan.repeat, place.n_prompt);
    length.max_blocks = std::max(length.max_blocks, BlocksOf(ladder.Seen(n_positions)));
  }
  return length;
}

int64_t MostBlocksBetween(const RetentionPlan& plan, const PromptPlace& place, int64_t n_held,
                          int64_t n_tokens) {
  const RetainedLength at_end = RetainedAt(plan, place, n_tokens);
  if (n_held < place.n_prompt) return at_end.max_blocks;
  // What a prune finds grows from one to the next; between two of them a head only grows.
  const int64_t last = LastPrunePoint(plan, place, n_tokens);
  const int64_t found = last > n_held ? BlocksOf(Ladder{plan, place}.Before(last)) : 0;
  return std::max({RetainedAt(plan, place, n_held).n_blocks, at_end.n_blocks, found});
}

double TemperatureAt(const RetentionPlan& plan, const PromptPlace& place, int64_t position,
                     int64_t n_generated) {
  if (position < place.n_prompt || n_generated <= 0) return plan.tau_init;
  const double share = std::min(
      1.0, static_cast<double>(position - place.n_prompt + 1) / static_cast<double>(n_generated));
  return plan.tau_init + share * (plan.tau_end - plan.tau_init);
}

}  // namespace kvlathe
