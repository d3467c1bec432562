// What sequences that begin with the same tokens share.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

bool IsSameRun(const RunExtent& a, const RunExtent& b) {
  return a.first_block == b.first_block && a.n_blocks == b.n_blocks && a.is_prompt == b.is_prompt &&
         a.is_repaired == b.is_repaired && a.entry_class == b.entry_class;
}

// Whether some blocks of a run may have left the window when the rest is sealed. Which ones depends
// on where the steps end, and so does what the rest becomes.
bool MayLoseBlocksBeforeSealing(const CacheLayout& layout) {
  if (!layout.seal.has_value()) return false;
  const SealPlan& plan = *layout.seal;
  const int n_open =
      std::max(plan.prompt_run, plan.buffer) + std::max(plan.newest, plan.most_newest);
  return std::ranges::any_of(layout.windows, [&](int w) { return w > 0 && w < n_open; });
}

int64_t EndBlockOf(std::span<const RunExtent> runs) {
  return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
}

// What decides which positions of a sequence another one can share.
struct Held {
  const CacheLayout& layout;
  int n_tokens = 0;
  int64_t released_at = 0;
  std::vector<RunExtent> runs;

  // The positions that the first n_runs end at.
  int64_t EndOf(size_t n_runs) const {
    return layout.n_sink + EndBlockOf(std::span(runs).first(n_runs)) * kBlockSize;
  }
};

std::vector<RunExtent> ExtentsOf(std::span<const SealedRun> runs) {
  std::vector<RunExtent> extents;
  std::ranges::transform(runs, std::back_inserter(extents), ExtentOf);
  return extents;
}

bool CanShareOf(const Held& held, int n_tokens, int64_t n_prompt) {
  if (!SharesPrefixes(held.layout) || n_tokens < 1 || n_tokens > held.n_tokens) return false;
  // What fell out of a window before could still be seen from there.
  if (held.layout.HasWindow() && n_tokens < held.released_at) return false;
  const std::vector<RunExtent> expected = RunsOf(held.layout, n_tokens, n_prompt);
  if (expected.size() > held.runs.size()) return false;
  if (!std::ranges::equal(expected, std::span(held.runs).first(expected.size()), IsSameRun)) {
    return false;
  }
  // What is not sealed yet at n_tokens may be sealed by now.
  return expected.size() == held.runs.size() || n_tokens <= held.EndOf(expected.size());
}

int MostShareableOf(const Held& held, int n_most, int64_t n_prompt) {
  n_most = std::min(n_most, held.n_tokens);
  if (CanShareOf(held, n_most, n_prompt)) return n_most;
  for (size_t n_runs = held.runs.size(); n_runs > 0; --n_runs) {
    const int64_t end = held.EndOf(n_runs);
    if (end < n_most && CanShareOf(held, static_cast<int>(end), n_prompt)) {
      return static_cast<int>(end);
    }
  }
  return 0;
}

}  // namespace

std::string_view WhyNothingIsShared(const CacheLayout& layout) {
  if (layout.MergesEntries()) return "positions are merged with those that follow";
  if (layout.retention.has_value()) return "which positions stay depends on what follows";
  if (layout.HasClasses()) return "bits of a position depend on the end of the prompt";
  if (layout.GathersQueries()) return "the basis depends on the queries of the whole prompt";
  if (layout.seal.has_value() && layout.seal->prompt_run == 0) {
    return "the prompt is compressed as a whole";
  }
  if (MayLoseBlocksBeforeSealing(layout)) {
    return "positions are compressed in runs longer than a layer's window";
  }
  return {};
}

int MostShareable(const CacheLayout& layout, const SavedPrefix& saved, int n_most,
                  int64_t n_prompt) {
  const Held held = {layout, saved.n_tokens, std::max(0, saved.n_tokens - 1),
                     RunsOf(layout, saved.n_tokens, saved.n_prompt)};
  return MostShareableOf(held, n_most, n_prompt);
}

bool SharesEndedPrompts(const CacheLayout& layout) {
  // Positions that keys need to turn by, and classes, are in tables that sequences write.
  return layout.DropsEntries() && layout.retention->repeats_prompt() && layout.windows.empty() &&
         !layout.HasClasses() && layout.RetentionIsOver(0, 0);
}

bool SequenceCache::CanShareEndedPrompt(int n_tokens, int64_t n_prompt) const {
  if (is_broken() || is_on_trial() || n_prompt != this->n_prompt()) return false;
  if (n_tokens < n_prompt || n_tokens > this->n_tokens()) return false;
  // What was not sealed yet at n_tokens may be sealed by now.
  return n_tokens == this->n_tokens() ||
         std::ranges::all_of(objects_.heads(), [](const HeadTable& head) {
           return head.runs.empty() || head.runs.back().is_prompt;
         });
}

bool SequenceCache::CanShare(int n_tokens, int64_t n_prompt) const {
  if (has_failed_) return false;
  if (SharesEndedPrompts(*layout_)) return CanShareEndedPrompt(n_tokens, n_prompt);
  const Held held = {*layout_, this->n_tokens(), progress_.released_at,
                     ExtentsOf(objects_.heads().front().runs)};
  return CanShareOf(held, n_tokens, n_prompt);
}

int SequenceCache::MostShareable(int n_most, int64_t n_prompt) const {
  if (has_failed_) return 0;
  if (SharesEndedPrompts(*layout_)) {
    n_most = std::min(n_most, n_tokens());
    return CanShareEndedPrompt(n_most, n_prompt) ? n_most : 0;
  }
  const Held held = {*layout_, n_tokens(), progress_.released_at,
                     ExtentsOf(objects_.heads().front().runs)};
  return MostShareableOf(held, n_most, n_prompt);
}

bool SequenceCache::Covers(const SequenceCache& other) const {
  if (SharesEndedPrompts(*layout_) && n_prompt() != other.n_prompt()) return false;
  return layout_ == other.layout_ && n_tokens() >= other.n_tokens() &&
         (!layout_->HasWindow() || progress_.released_at <= other.progress_.released_at) &&
         std::ranges::equal(ExtentsOf(objects_.heads().front().runs),
                            ExtentsOf(other.objects_.heads().front().runs), IsSameRun);
}

StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Share(const PrefixPlace& place,
                                                              bool to_write) const {
  KVL_CHECK(CanShare(place.n_tokens, place.n_prompt));
  auto shared = std::make_unique<SequenceCache>(layout_, objects_.pool());
  shared->progress_.n_tokens = place.n_tokens;
  shared->progress_.n_prompt = place.n_prompt;
  shared->progress_.n_generated = place.n_generated;
  shared->progress_.released_at = std::min<int64_t>(progress_.released_at, place.n_tokens);
  if (shared->objects_.ShareFrom(objects_, place.n_tokens, to_write)) {
    shared->n_writable_ = shared->objects_.WritablePositions();
    return shared;
  }
  shared.reset();  // what is free is told without it
  const PoolUsage usage = objects_.pool()->usage();
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: {} of {} bytes are free, too few to share {} positions; raise "
               "--kv-memory",
               usage.budget_bytes - usage.used_bytes, usage.budget_bytes, place.n_tokens);
}

StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Keep(const PrefixPlace& place) {
  KVL_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> kept, Share(place, /*to_write=*/false));
  if (!must_seal_ || objects_.SetRoomAsideForShared(progress_)) {
    if (told() != nullptr) {
      told()->Shared(number_, kept->number_, place, CacheJournal::Sharing::kKeep);
    }
    return kept;
  }
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: no room to seal {} positions beside those that are shared",
               n_tokens());
}

StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Fork(const PrefixPlace& place) const {
  KVL_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> fork, Share(place, /*to_write=*/true));
  if (told() != nullptr) {
    told()->Shared(number_, fork->number_, place, CacheJournal::Sharing::kFork);
  }
  return fork;
}

}  // namespace kvlathe
