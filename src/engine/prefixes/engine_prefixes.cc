// How requests begin behind what others have read, and leave what they read themselves.
#include <algorithm>
#include <span>
#include <utility>

#include "engine/engine.h"

namespace kvlathe {

PrefixStore::Question Engine::QuestionOf(const Sequence& s) const {
  PrefixStore::Question question = {.key = &s.prefix_key,
                                    .tokens = s.tokens,
                                    .n_prompt = s.n_prompt,
                                    .n_generated = s.request.max_tokens};
  // So that there is something to compute, and a step that ends where the stream does.
  if (s.request.prompt_sink != nullptr) question.tokens = question.tokens.first(s.n_given - 1);
  // Where the prompt ends in a cache must not change once something was computed.
  if (s.turn_ends.size() > 1 || s.outcome.n_preemptions > 0) return question;
  question.may_end_prompt_at = [this, &s](int64_t n_prompt) {
    return LeastBytesAlone(*s.layout, s.max_positions(), options_.max_batch_tokens, n_prompt) <=
           budget_bytes_;
  };
  return question;
}

// Whether an older sequence is reading what this one begins with, so that it is soon there to begin
// behind. Only where that saves most of the prompt, and more than a step costs.
bool Engine::WaitsForPrefix(const Sequence& s) {
  constexpr int64_t kWorthWaitingFor = 128;  // tokens
  int64_t n_found = -1;
  for (const auto& older : running_) {
    if (older.get() == &s) return false;
    if (older->layout != s.layout || older->request.prefix_salt != s.request.prefix_salt ||
        older->n_cached() >= older->n_given || older->ReadsAnew() ||
        older->cache->n_pressed() > 0) {
      continue;
    }
    const auto known = std::span(older->tokens).first(older->n_given - 1);
    const int64_t n_common = std::ranges::mismatch(known, s.tokens).in1 - known.begin();
    if (n_common < kWorthWaitingFor || 2 * n_common < s.n_known()) continue;
    if (n_found < 0) n_found = prefixes_.CountFound(QuestionOf(s));
    if (n_common >= n_found + kWorthWaitingFor) return true;
  }
  return false;
}

// Whether it waits for what is being read from disk, which a disk that does not answer may delay
// but not prevent.
bool Engine::Fetches(Sequence* s) {
  constexpr double kLongestWait = 5;  // seconds
  if (options_.archive == nullptr) return false;
  if (!s->since_fetch.has_value()) s->since_fetch.emplace();
  if (s->since_fetch->Seconds() > kLongestWait || !prefixes_.Fetches(QuestionOf(*s))) {
    s->since_fetch.reset();
    return false;
  }
  is_fetching_ = true;
  return true;
}

// Of a sequence without a position in its cache: it begins behind what is stored of its tokens, or
// at the beginning; or not yet.
bool Engine::BeginsNow(Sequence* s) {
  if (!prefixes_.Takes(*s->layout) || s->ReadsAnew()) return true;
  // What comes of a prompt that an older sequence is reading is there once that one has ended.
  const bool is_known_before = SharesPrefixes(*s->layout);
  if (is_known_before && (WaitsForPrefix(*s) || Fetches(s) || IsReadElsewhere(s))) return false;
  PrefixStore::Found found = prefixes_.Find(QuestionOf(*s));
  const int n_tokens = found.cache == nullptr ? 0 : found.cache->n_tokens();
  if (found.cache != nullptr) s->BeginBehind(std::move(found.cache));
  // Another prompt may go on from here otherwise: the end of the prompt, and where this one left
  // those that are stored without finding the cache there.
  s->prefix_ends = {static_cast<int>(s->n_given - 1)};
  const bool parts = found.n_common >= n_tokens + PrefixStore::kLeastTokens;
  if (parts && found.n_common < s->n_given - 1) {
    s->prefix_ends.insert(s->prefix_ends.begin(), found.n_common);
  }
  if (!std::exchange(s->has_asked_prefixes, true)) {
    s->outcome.n_prefix_tokens = n_tokens;
    if (observer() != nullptr) {
      observer()->OnPrefixFound(s->id, static_cast<int>(s->n_given), n_tokens);
    }
  }
  return true;
}

// After all have room for the step: what is kept may take only what nobody needs, and little of
// what is kept already.
void Engine::KeepPrefixes() {
  constexpr int kMostEvictions = 16;  // of entries for one prompt
  for (const LevelBatch& batch : batches_) {
    for (Sequence* const s : batch.sequences) {
      if (s->prefix_ends.empty() || !prefixes_.Takes(*s->layout)) continue;
      for (int n = 0; !s->KeepPrefixes() && n < kMostEvictions; ++n) {
        if (!prefixes_.EvictOldest()) break;
      }
    }
  }
}

void Engine::StorePrefixes(Sequence* s) {
  for (std::unique_ptr<SequenceCache>& kept : std::exchange(s->kept_prefixes, {})) {
    const auto tokens = std::span(s->tokens).first(kept->n_tokens());
    prefixes_.Add(s->prefix_key, tokens, std::move(kept));
  }
}

}  // namespace kvlathe
