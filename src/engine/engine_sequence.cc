#include "engine/engine_sequence.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/units.h"
#include "format/rows/block_layout.h"
#include "kv/capacity.h"

namespace kvlathe {

Status LogitsNotFinite(int64_t position) {
  return Error(
      StatusCode::kDataLoss,
      "the model computed logits that are not finite at position {} (weights or activations "
      "overflow in bf16? try --dtype f32)",
      position);
}

EngineSequence::EngineSequence(Request r, Session session, const CacheLayout* cache_layout)
    : request(std::move(r)),
      sampler(request.sampling),
      tokens(std::move(session.tokens)),
      turn_ends(std::move(session.turn_ends)),
      layout(cache_layout),
      cache(std::move(session.cache)) {
  tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
  n_given = n_known();
  if (request.prompt.empty()) {
    turn_ends.pop_back();  // that turn goes on
  } else {
    turn_ends.push_back(static_cast<int>(n_given));
  }
  n_prompt = cache == nullptr ? turn_ends.front() : cache->n_prompt();
  prefix_key = {.layout = layout, .salt = request.prefix_salt};
  if (session.sampling.seed == request.sampling.seed) sampler.set_n_draws(session.n_draws);
  EnterTurns();
  if (request.prompt_logprobs) {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    outcome.prompt_logprobs.push_back({.chosen = {tokens.front(), kNone}, .top = {}});
  }
}

void EngineSequence::EnterTurns() {
  int64_t begin = 0;
  bool is_output = false;
  const auto enter_until = [&](int64_t end) {
    sampler.EnterBefore(std::span(tokens).subspan(begin, end - begin), is_output);
    begin = end;
    is_output = !is_output;
  };
  for (const int end : turn_ends) enter_until(end);
  enter_until(n_known());
}

int64_t EngineSequence::WantedBytes(int max_step, const MergedCounts& of_level) {
  // To the end of a block, so that the answer is the same for many steps.
  const int64_t behind_sinks = RoundUp(n_known() + kBlockSize - layout->n_sink, kBlockSize);
  const int64_t n_until = std::min(layout->n_sink + behind_sinks, max_positions());
  const bool has_prompt = n_cached() >= n_prompt;
  Forecast& f = forecast_;
  const int64_t off_bytes = cache == nullptr ? 0 : cache->bytes_pressed_off();
  if (f.n_until == n_until && f.has_prompt == has_prompt && f.decodes == decodes()) {
    return f.n_bytes - std::max(off_bytes, f.to_press_bytes);
  }
  const auto n_heads = static_cast<int64_t>(layout->shapes.size());
  const bool is_measured = merged_.n_positions >= kMeasuredPositions * n_heads;
  const double share = is_measured ? merged_.share() : of_level.share();
  const int n_decode = request.drafter == nullptr ? 1 : 1 + kMostDrafted;
  f = {n_until, has_prompt, decodes(),
       PeakBytesIfMerged(*layout, {n_cached(), n_until}, decodes() ? n_decode : max_step, n_prompt,
                         share),
       request.refuses_pressure ? 0 : BytesToPressOff(*layout, n_until, n_prompt)};
  const int64_t n_bytes = f.n_bytes - std::max(off_bytes, f.to_press_bytes);
  if (layout->ModelDecidesEntries() && !is_measured) f = {};  // others will know better
  return n_bytes;
}

MergedCounts EngineSequence::MeasureMerging() {
  if (cache == nullptr || !layout->ModelDecidesEntries()) return {};
  const MergedCounts now = MergedCountsOf(*cache);
  if (now.n_positions <= merged_.n_positions) return {};  // a replay: was counted before
  const MergedCounts before = std::exchange(merged_, now);
  return {now.n_positions - before.n_positions, now.n_entries - before.n_entries};
}

void EngineSequence::DropCache() {
  cache.reset();
  input.clear();
  repeat.reset();
  n_draft = 0;
  kept_prefixes.clear();
  forecast_ = {};
  ++outcome.n_preemptions;
}

void EngineSequence::BeginBehind(std::unique_ptr<SequenceCache> prefix) {
  cache = std::move(prefix);
  n_prompt = cache->n_prompt();
  forecast_ = {};
}

bool EngineSequence::KeepPrefixes() {
  kept_prefixes.clear();
  if (repeats()) return true;
  const int64_t n_before = cache->n_tokens() - std::ssize(input);
  for (const int end : prefix_ends) {
    if (end <= n_before || end > n_cached() || !cache->CanShare(end, n_prompt)) continue;
    auto kept = cache->Keep({end, n_prompt, request.max_tokens});
    if (!kept.ok()) return false;
    kept_prefixes.push_back(*std::move(kept));
  }
  return true;
}

void EngineSequence::TakeInput(int64_t n_max) {
  if (cache->must_read_again() && !repeat.has_value())
    repeat.emplace(&layout->retention->repeat, n_prompt);
  if (repeats()) {
    input = repeat->Next(tokens, n_max);
    return;
  }
  const auto turn = std::upper_bound(turn_ends.begin(), turn_ends.end(), n_cached());
  int64_t end = turn == turn_ends.end() ? n_known() : *turn;
  if (request.prompt_sink != nullptr) end = n_given - 1;
  const auto begin = tokens.begin() + n_cached();
  input.assign(begin, begin + std::min({n_max, end - n_cached(), cache->max_step()}));
  n_draft = 0;
}

Status EngineSequence::ExtendCache() {
  const auto n_new = static_cast<int>(input.size());
  return repeats() ? cache->ExtendOnTrial(n_new) : cache->Extend(n_new);
}

void EngineSequence::EndRepeatStep() {
  outcome.n_repeated_tokens += std::ssize(input);
  if (repeat->Advance(tokens, std::ssize(input))) cache->TakeBack(static_cast<int>(n_prompt - 1));
  if (repeat->is_done()) cache->EndReadingAgain();
}

SequenceStep::Logits EngineSequence::WantedLogits() const {
  if (repeats()) return SequenceStep::Logits::kNone;
  if (request.pooling) return SequenceStep::Logits::kHidden;
  if (n_unchecked > 0) return SequenceStep::Logits::kAll;
  // The last token of a prompt tells none of it.
  if (LacksPromptLogprobs() && n_cached() >= std::ssize(outcome.prompt_logprobs)) {
    return SequenceStep::Logits::kAll;
  }
  return n_cached() == n_known() ? SequenceStep::Logits::kLast : SequenceStep::Logits::kNone;
}

Status EngineSequence::TakeHidden(int64_t n_new,
                                  const std::function<std::span<const float>(int64_t)>& hidden_of) {
  const int64_t first = n_cached() - n_new;
  if (first == 0) {  // also where it was preempted and begins again
    hidden_sum_.clear();
    all_hidden_.clear();
  }
  for (int64_t i = 0; i < n_new; ++i) {
    const std::span<const float> hidden = hidden_of(i);
    if (!AreFinite(hidden)) return LogitsNotFinite(first + i);
    if (*request.pooling == Pooling::kAll) {
      all_hidden_.insert(all_hidden_.end(), hidden.begin(), hidden.end());
      continue;
    }
    if (*request.pooling == Pooling::kLast) hidden_sum_.clear();
    hidden_sum_.resize(hidden.size());
    for (size_t d = 0; d < hidden.size(); ++d) hidden_sum_[d] += hidden[d];
  }
  if (n_cached() < n_known()) return OkStatus();
  if (*request.pooling == Pooling::kAll) {
    outcome.embedding = std::move(all_hidden_);
    return OkStatus();
  }
  const double n = *request.pooling == Pooling::kLast ? 1 : static_cast<double>(n_known());
  for (const double sum : hidden_sum_) {
    outcome.embedding.push_back(static_cast<float>(sum / n));
  }
  return OkStatus();
}

Status EngineSequence::TakePromptLogprobs(
    int64_t n_new, const std::function<std::span<const float>(int64_t)>& logits_of) {
  std::vector<TokenLogprobs>& known = outcome.prompt_logprobs;
  const int64_t first = n_cached() - n_new;
  // The logits at a position are of the token behind it. A replay begins with what is known.
  for (int64_t i = std::max<int64_t>(0, std::ssize(known) - 1 - first);
       i < n_new && std::ssize(known) < n_given; ++i) {
    const std::span<const float> logits = logits_of(i);
    if (!AreFinite(logits)) return LogitsNotFinite(first + i);
    known.push_back(LogprobsOf(logits, tokens[std::ssize(known)], *request.n_top_logprobs));
  }
  return OkStatus();
}

}  // namespace kvlathe
