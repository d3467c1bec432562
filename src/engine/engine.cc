#include "engine/engine.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {
namespace {

// Why the oldest ends, alone and with a token to add.
Status NoRoomAlone(const EngineSequence& s, const Status& status, int64_t budget_bytes) {
  if (!s.layout->ModelDecidesEntries()) return status;  // others use the pool
  return Error(
      StatusCode::kResourceExhausted,
      "KV cache full: after {} of {} positions the sequence alone holds {} and the budget "
      "is {}, as the model has merged too few of its positions; raise --kv-memory, shorten "
      "the request or choose a smaller --kv",
      s.n_cached(), s.max_positions(), FormatBytes(s.cache->bytes().total()),
      FormatBytes(budget_bytes));
}

// Gives up the cache that the newest waiting session brought with it. False when there is none.
bool DropWaitingCache(const std::deque<std::unique_ptr<EngineSequence>>& waiting) {
  const auto newest = std::find_if(waiting.rbegin(), waiting.rend(),
                                   [](const auto& s) { return s->cache != nullptr; });
  if (newest == waiting.rend()) return false;
  (*newest)->DropCache();
  return true;
}

}  // namespace

Engine::Engine(std::vector<Model*> levels, BlockPool* pool, const EngineOptions& options)
    : levels_(std::move(levels)),
      pool_(pool),
      options_(options),
      budget_bytes_(pool->usage().budget_bytes),
      inbox_(options.max_waiting),
      batches_(levels_.size()),
      merged_(levels_.size()),
      pacing_(options.prompt_share),
      prefixes_(pool, options.prefix_bytes, options.archive) {
  KVL_CHECK(!levels_.empty());
  KVL_CHECK_GE(options_.max_batch_tokens, 1);
  KVL_CHECK_GE(options_.max_sequences, 1);
  KVL_CHECK_GE(options_.prefix_bytes, 0);
  const bool has_places = options_.identities.size() == levels_.size();
  KVL_CHECK(has_places || (options_.identities.empty() && options_.archive == nullptr &&
                           options_.readers == nullptr));
  KVL_CHECK(options_.prompt_share > 0 && options_.prompt_share <= 1);
}

Engine::~Engine() = default;

int64_t Engine::WantedBytes(Sequence* s) {
  MergedCounts& of_level = merged_[s->request.level];
  of_level.Add(s->MeasureMerging());
  return s->WantedBytes(options_.max_batch_tokens, of_level);
}

// The oldest runs whatever it is expected to need.
void Engine::AdmitWaiting() {
  if (waiting_.empty()) return;
  // A sequence that decodes takes a token of every step.
  const size_t max_running = std::min(options_.max_sequences, options_.max_batch_tokens);
  int64_t wanted_bytes = 0;
  for (const auto& s : running_) wanted_bytes += WantedBytes(s.get());
  while (!waiting_.empty() && running_.size() < max_running) {
    wanted_bytes += WantedBytes(waiting_.front().get());
    if (wanted_bytes > pool_->usage().budget_bytes && !running_.empty()) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    inbox_.set_n_running(running_.size());
    Sequence& s = *running_.back();
    if (s.cache == nullptr) {
      s.cache = std::make_unique<SequenceCache>(s.layout, pool_);
      s.cache->set_n_prompt(s.n_prompt, s.request.max_tokens);
    }
    if (observer() != nullptr) observer()->OnAdmitted(s.id, s.since_submit.Milliseconds());
  }
}

void Engine::ShareTokenBudget() {
  is_fetching_ = false;
  int64_t n_left = options_.max_batch_tokens;
  const int64_t row_bytes = levels_.front()->config().vocab_size * int64_t{sizeof(float)};
  int64_t n_rows_left = std::max<int64_t>(1, kMaxPromptLogitBytes / row_bytes);
  for (const bool decodes : {true, false}) {
    const bool others_decode = n_left < options_.max_batch_tokens;
    if (!decodes && others_decode && !pacing_.prompts_go_on()) n_left = 0;
    for (const auto& s : running_) {
      if (s->decodes() != decodes) continue;
      if (n_left > 0 && s->n_cached() == 0 && !BeginsNow(s.get())) {
        s->input.clear();
        continue;
      }
      if (s->waits_to_send()) is_fetching_ = true;
      s->TakeInput(s->ReadsAnew() ? std::min(n_left, n_rows_left) : n_left);
      const auto n_taken = static_cast<int64_t>(s->input.size());
      n_left -= n_taken;
      if (s->ReadsAnew()) n_rows_left -= n_taken;
    }
    if (decodes) n_left -= ShareDrafts(n_left);
  }
}

void Engine::PreemptNewest() {
  std::unique_ptr<Sequence> newest = std::move(running_.back());
  running_.pop_back();
  inbox_.set_n_running(running_.size());
  merged_[newest->request.level].Add(newest->MeasureMerging());
  const auto cached = std::span(newest->tokens).first(newest->n_cached());
  prefixes_.SaveNow(newest->prefix_key, cached, *newest->cache);
  newest->DropCache();
  const RequestId id = newest->id;
  waiting_.push_front(std::move(newest));
  if (observer() != nullptr) observer()->OnPreempted(id);
}

// Makes room for the input of a sequence: at the cost of bits of caches that may lose some, then of
// newer sequences, then by a shorter step, at last at the cost of itself. No input is left of a
// sequence that waits for the next step. The oldest has no room only when others use its pool, or
// where it merged too little.
Status Engine::ExtendOrPreempt(Sequence* sequence) {
  for (;;) {
    const Status status = sequence->ExtendCache();
    if (status.code() != StatusCode::kResourceExhausted) return status;
    if (sequence->n_draft > 0) {  // for which nobody gives anything up
      sequence->DropDraft();
      continue;
    }
    if (prefixes_.EvictOldest() || DropWaitingCache(waiting_)) continue;
    const Pressed pressed = PressNewest();
    if (pressed == Pressed::kRun) continue;
    if (pressed == Pressed::kEnough) {
      sequence->input.clear();
      return OkStatus();
    }
    const bool is_newest = running_.back().get() == sequence;
    if (is_newest && sequence->input.size() > 1) {
      sequence->input.resize(sequence->input.size() / 2);
      continue;
    }
    if (running_.size() == 1) return NoRoomAlone(*sequence, status, budget_bytes_);
    PreemptNewest();
    if (is_newest) return OkStatus();
  }
}

// Oldest first, so that who is preempted is not in a batch yet.
StepWork Engine::BuildBatches() {
  ShareTokenBudget();
  n_pressed_ = 0;
  StepWork work = {.step_idx = n_steps_};
  for (LevelBatch& batch : batches_) {
    batch.steps.clear();
    batch.sequences.clear();
  }
  for (size_t i = 0; i < running_.size();) {
    Sequence* s = running_[i].get();
    if (s->input.empty()) {
      ++i;
      continue;
    }
    const bool decodes = s->decodes();
    Status status = ExtendOrPreempt(s);
    if (!status.ok()) {
      Fail(s, std::move(status));
      continue;
    }
    if (i == running_.size()) break;  // it was preempted itself
    if (s->input.empty()) {
      ++i;
      continue;
    }
    s->n_unchecked = s->n_draft;
    LevelBatch& batch = batches_[s->request.level];
    batch.steps.push_back({s->cache.get(), s->input, s->WantedLogits()});
    batch.sequences.push_back(s);
    (decodes ? work.n_decode_tokens : work.n_fill_tokens) += static_cast<int>(s->input.size());
    ++work.n_sequences;
    ++i;
  }
  return work;
}

// What the model has computed for a level: log-probabilities of prompts, and tokens.
void Engine::TakeResults(Model* model, LevelBatch* batch) {
  int64_t first_row = 0;
  for (size_t i = 0; i < batch->steps.size(); ++i) {
    const SequenceStep& step = batch->steps[i];
    Sequence* const s = batch->sequences[i];
    const int64_t end_row = first_row + step.n_logit_rows();
    Status status = std::move(batch->failures[i]);
    if (status.ok() && step.logits == SequenceStep::Logits::kAll && s->n_unchecked == 0) {
      status = s->TakePromptLogprobs(step.n_new(),
                                     [&](int64_t row) { return model->logits(first_row + row); });
    }
    if (status.ok() && step.logits == SequenceStep::Logits::kHidden) {
      status =
          s->TakeHidden(step.n_new(), [&](int64_t row) { return model->hidden(first_row + row); });
    }
    if (!status.ok()) {
      Fail(s, std::move(status));
    } else if (s->repeats()) {
      s->EndRepeatStep();
    } else if (!s->outcome.embedding.empty()) {
      Finish(s, FinishReason::kStop);
    } else {
      StorePrefixes(s);
      if (s->request.prompt_sink != nullptr) {
        SendPrompt(s);
      } else if (s->n_cached() == s->n_known()) {
        TakeTokens(s, model, end_row);
      }
    }
    first_row = end_row;
  }
}

Engine::Taken Engine::TakeToken(Sequence* s, Model* model, int64_t row) {
  TokenConstraint* const constraint = s->request.constraint.get();
  const LargestNumbers* const likeliest =
      s->sampler.TakesLikeliest(constraint) ? model->Likeliest(row) : nullptr;
  const StatusOr<int32_t> token = likeliest != nullptr
                                      ? s->sampler.SampleLikeliest(*likeliest)
                                      : s->sampler.Sample(model->logits(row), constraint);
  if (!token.ok()) {
    const bool is_finite = token.status().code() != StatusCode::kDataLoss;
    Fail(s, is_finite ? token.status() : LogitsNotFinite(s->n_cached() - 1));
    return Taken::kEnded;
  }
  const bool was_drafted = s->AcceptsNext(*token);
  if (was_drafted && observer() != nullptr) observer()->OnDrafted(s->id, 0, 1);
  if (s->outcome.tokens.empty()) {
    s->outcome.ttft_ms = s->since_submit.Milliseconds();
    s->since_first_token.Restart();
    if (observer() != nullptr) observer()->OnFirstToken(s->id, s->outcome.ttft_ms);
  }
  const auto& stops = s->request.stop_ids;
  if (std::find(stops.begin(), stops.end(), *token) != stops.end()) {
    s->outcome.stop_id = *token;
    Finish(s, FinishReason::kStop);
    return Taken::kEnded;
  }
  if (constraint != nullptr) {
    Status status = constraint->Accept(*token);
    if (!status.ok()) {
      Fail(s, std::move(status));
      return Taken::kEnded;
    }
  }
  if (!GiveToken(s, *token, *model, row)) return Taken::kEnded;
  return was_drafted ? Taken::kDraftedToken : Taken::kToken;
}

bool Engine::GiveToken(Sequence* s, int32_t token, const Model& model, int64_t row) {
  const Request& request = s->request;
  std::optional<TokenLogprobs> logprobs;
  if (request.n_top_logprobs.has_value()) {
    logprobs = LogprobsOf(model.logits(row), token, *request.n_top_logprobs);
  }
  const bool is_first = s->outcome.tokens.empty();
  s->tokens.push_back(token);
  s->outcome.tokens.push_back(token);
  FinishReason reason = FinishReason::kNone;
  if (s->on_token) {
    const bool has_prompt = is_first && request.prompt_logprobs;
    reason = s->on_token(s->id, {token, logprobs.has_value() ? &*logprobs : nullptr,
                                 has_prompt ? &s->outcome.prompt_logprobs : nullptr});
  }
  if (observer() != nullptr) observer()->OnToken(s->id, token);
  if (reason == FinishReason::kNone && request.constraint != nullptr &&
      request.constraint->is_complete()) {
    reason = FinishReason::kStop;
  }
  if (reason == FinishReason::kNone && std::ssize(s->outcome.tokens) == request.max_tokens) {
    reason = FinishReason::kLength;
  }
  if (reason == FinishReason::kNone) return true;
  Finish(s, reason);
  return false;
}

// From those that run or wait.
std::unique_ptr<EngineSequence> Engine::Remove(Sequence* sequence) {
  const auto is_it = [&](const auto& s) { return s.get() == sequence; };
  const auto take = [](auto& from, auto place) {
    std::unique_ptr<Sequence> taken = std::move(*place);
    from.erase(place);
    return taken;
  };
  const auto running = std::ranges::find_if(running_, is_it);
  if (running == running_.end()) return take(waiting_, std::ranges::find_if(waiting_, is_it));
  std::unique_ptr<Sequence> taken = take(running_, running);
  inbox_.set_n_running(running_.size());
  return taken;
}

void Engine::Finish(Sequence* sequence, FinishReason reason) {
  const std::unique_ptr<Sequence> finished = Remove(sequence);
  merged_[finished->request.level].Add(finished->MeasureMerging());
  // The cache of a failed step is good for nothing, and its blocks may be wanted by the callback.
  const bool has_failed = reason == FinishReason::kFailed;
  if (!has_failed) finished->EndDraft();
  // Who cancelled it was promised that it ends so.
  if (inbox_.Remove(finished->id)) reason = FinishReason::kCancelled;
  RequestOutcome& outcome = finished->outcome;
  outcome.finish_reason = reason;
  if (reason == FinishReason::kCancelled) {
    outcome.status = Error(StatusCode::kCancelled, "the request was cancelled");
  }
  if (reason == FinishReason::kFailed) first_failure_.Update(outcome.status);
  if (!outcome.tokens.empty()) outcome.decode_seconds = finished->since_first_token.Seconds();
  outcome.n_cached_tokens = static_cast<int>(finished->n_cached());
  outcome.n_cache_prompt = finished->n_prompt;
  if (finished->cache != nullptr) {
    std::vector<KvBytes> held = levels_[finished->request.level]->BytesByRank(*finished->cache);
    outcome.kv_bytes = SumOf(held);
    if (held.size() > 1) outcome.kv_bytes_by_rank = std::move(held);
  }
  if (has_failed) finished->cache.reset();
  const bool has_answered = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (observer() != nullptr && has_answered && !finished->request.answer_id.empty()) {
    observer()->OnAnswered(finished->id, {.request = finished->request,
                                          .layout = *finished->layout,
                                          .tokens = finished->tokens,
                                          .n_read = finished->n_given,
                                          .n_cache_prompt = finished->n_prompt,
                                          .n_pressed = outcome.n_pressed_tokens});
  }
  finishing_ = finished.get();
  if (finished->on_finish) finished->on_finish(finished->id, outcome);
  finishing_ = nullptr;
  const bool has_fewer_bits = finished->cache != nullptr && finished->cache->n_pressed() > 0;
  if (finished->cache != nullptr && !has_fewer_bits && !finished->repeats() &&
      prefixes_.Takes(*finished->layout)) {
    const auto tokens = std::span(finished->tokens).first(finished->n_cached());
    prefixes_.Add(finished->prefix_key, tokens, std::move(finished->cache));
  }
  finished->cache.reset();
  prefixes_.Trim();
  if (observer() != nullptr) observer()->OnFinished(finished->id, outcome);
}

void Engine::Fail(Sequence* sequence, Status status) {
  sequence->outcome.status = std::move(status);
  Finish(sequence, FinishReason::kFailed);
}

// Callbacks may cancel more, which the next step ends.
void Engine::FinishCancelled() {
  for (const RequestId id : std::exchange(to_cancel_, {})) {
    const auto is_it = [&](const auto& s) { return s->id == id; };
    if (const auto s = std::ranges::find_if(running_, is_it); s != running_.end()) {
      Finish(s->get(), FinishReason::kCancelled);
    } else if (const auto w = std::ranges::find_if(waiting_, is_it); w != waiting_.end()) {
      Finish(w->get(), FinishReason::kCancelled);
    }
  }
}

// All that are there now: callbacks may submit more.
void Engine::CancelAll() {
  for (const auto& s : running_) to_cancel_.push_back(s->id);
  for (const auto& s : waiting_) to_cancel_.push_back(s->id);
  FinishCancelled();
}

EngineLoad Engine::Load() const {
  EngineLoad load = {.n_running = n_running(), .n_waiting = n_waiting(), .pool = pool_->usage()};
  for (const auto& s : running_) load.reference_bytes += ReferenceBytes(*s->layout, s->n_cached());
  return load;
}

ByteKinds Engine::RunningBytes() const {
  ByteKinds sum;
  for (const auto& s : running_) {
    const SequenceLength length = {.n_tokens = s->n_cached(), .n_prompt = s->n_prompt};
    for (const ByteKinds& layer : ByteKindsByLayer(*s->layout, length)) sum.Add(layer);
  }
  return sum;
}

Session Engine::TakeSession(RequestId id) {
  KVL_CHECK(finishing_ != nullptr);
  Sequence& s = *finishing_;
  KVL_CHECK_EQ(s.id, id);
  s.turn_ends.push_back(static_cast<int>(s.n_known()));
  if (s.n_cached() + 1 < s.n_known() || s.repeats()) s.cache.reset();
  return {std::move(s.tokens), std::move(s.turn_ends), s.request.sampling,
          s.sampler.n_draws(), std::move(s.cache),     s.request.level};
}

void Engine::Compute(const StepWork& work) {
  const Stopwatch watch;
  if (observer() != nullptr) observer()->OnStepBegan(work, Load());
  Status first_error;
  for (size_t l = 0; l < levels_.size(); ++l) {
    LevelBatch& batch = batches_[l];
    if (batch.steps.empty()) continue;
    const Status status = levels_[l]->ForwardEach(batch.steps, &batch.failures);
    first_error.Update(status);
    if (status.ok()) {
      TakeResults(levels_[l], &batch);
    } else {
      for (Sequence* const s : batch.sequences) Fail(s, status);
    }
  }
  const double seconds = watch.Seconds();
  pacing_.Note(work, seconds);
  if (observer() != nullptr) observer()->OnStepEnded(work, Load(), seconds, first_error);
}

bool Engine::Step() {
  inbox_.Take(&arrived_, &to_cancel_);
  std::ranges::move(arrived_, std::back_inserter(waiting_));
  arrived_.clear();
  if (options_.is_interrupted && options_.is_interrupted()) {
    CancelAll();
    return false;
  }
  FinishCancelled();
  AdmitWaiting();
  SendRest();
  const StepWork work = BuildBatches();
  if (work.n_sequences > 0) {
    ++n_steps_;
    KeepPrefixes();
    Compute(work);
  } else if (is_fetching_) {
    WaitForOthers();
  }
  prefixes_.Tend();
  return !inbox_.is_empty();
}

Status Engine::RunUntilIdle() {
  first_failure_ = OkStatus();
  while (Step()) {
  }
  return first_failure_;
}

}  // namespace kvlathe
