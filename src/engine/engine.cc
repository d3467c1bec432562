#include "engine/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

namespace {

Status NotFinite(int64_t position) {
  return Error(
      StatusCode::kDataLoss,
      "the model computed logits that are not finite at position {} (weights or activations "
      "overflow in bf16? try --dtype f32)",
      position);
}

}  // namespace

struct Engine::Sequence {
  RequestId id = 0;
  Request request;
  TokenCallback on_token;
  FinishCallback on_finish;
  Sampler sampler;
  std::vector<int32_t> tokens;  // known so far: of the session, of the prompt, generated
  std::vector<int> turn_ends;   // in `tokens`, of all turns but the one that generates
  int64_t n_given = 0;          // tokens before the first that this request generates
  const CacheLayout* layout;    // of the cache
  std::unique_ptr<SequenceCache> cache;
  std::vector<int32_t> input;  // tokens of the current step
  RequestOutcome outcome;
  Stopwatch since_submit;
  Stopwatch since_first_token;

  Sequence(Request r, Session session, const CacheLayout* cache_layout)
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
    if (session.sampling.seed == request.sampling.seed) sampler.set_n_draws(session.n_draws);
    EnterTurns();
  }

  // Tells the sampler what was there before.
  void EnterTurns() {
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

  int64_t n_prompt() const { return turn_ends.front(); }
  int64_t n_known() const { return std::ssize(tokens); }
  int64_t n_cached() const { return cache == nullptr ? 0 : cache->n_tokens(); }
  bool decodes() const { return n_known() > turn_ends.back() && n_cached() + 1 == n_known(); }
  // The last generated token is never fed back, so it needs no place in the cache.
  int64_t max_positions() const { return n_given + request.max_tokens - 1; }

  // What the cache should be able to hold for the sequence to be worth running: without the block
  // to spare, a sequence that was preempted for a block would be back in the next step.
  int64_t WantedBytes(int max_step) const {
    return PeakSequenceBytes(*layout, std::min(n_known() + kBlockSize, max_positions()), max_step,
                             n_prompt());
  }

  // Makes `input` the next tokens for the cache, at most n_max, of one turn and of one run.
  void TakeInput(int64_t n_max) {
    const auto turn = std::upper_bound(turn_ends.begin(), turn_ends.end(), n_cached());
    const int64_t end = turn == turn_ends.end() ? n_known() : *turn;
    const auto begin = tokens.begin() + n_cached();
    input.assign(begin, begin + std::min({n_max, end - n_cached(), cache->max_step()}));
  }
};

Engine::Engine(Model* model, BlockPool* pool, const EngineOptions& options)
    : model_(model), pool_(pool), options_(options), budget_bytes_(pool->usage().budget_bytes) {
  KVL_CHECK_GE(options_.max_batch_tokens, 1);
  KVL_CHECK_GE(options_.max_sequences, 1);
}

Engine::~Engine() = default;

StatusOr<const CacheLayout*> Engine::LayoutFor(const Request& request, const Session& session) {
  const CacheLayout* const kept =
      session.cache != nullptr ? &session.cache->layout() : &model_->layout();
  if (!request.rate.has_value()) return kept;
  const std::lock_guard lock(layout_mutex_);
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const wanted, model_->LayoutAt(*request.rate));
  if (session.cache == nullptr || wanted == kept) return wanted;
  return Error(StatusCode::kInvalidArgument,
               "rate={}: the session's cache has another rate; go on without one, or start again",
               *request.rate);
}

// Leaves the session as it is unless it succeeds.
StatusOr<std::unique_ptr<Engine::Sequence>> Engine::MakeSequence(Request request,
                                                                 Session* session) {
  const ModelConfig& c = model_->config();
  const int64_t n_given = std::ssize(session->tokens) + std::ssize(request.prompt);
  if (n_given == 0) return Error(StatusCode::kInvalidArgument, "the prompt has no tokens");
  if (session->cache != nullptr && session->cache->n_tokens() >= n_given) {
    return Error(StatusCode::kInvalidArgument,
                 "the session ended with the end of sequence; give it a prompt to go on");
  }
  if (request.max_tokens < 1) {
    return Error(StatusCode::kInvalidArgument, "max_tokens is {}; give at least 1",
                 request.max_tokens);
  }
  KVL_RETURN_IF_ERROR(request.sampling.Check());
  KVL_RETURN_IF_ERROR(request.sampling.CheckVocabulary(c.vocab_size));
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= c.vocab_size) {
      return Error(StatusCode::kInvalidArgument, "token id {} is outside the vocabulary of {}", id,
                   c.vocab_size);
    }
  }
  if (n_given + request.max_tokens > c.max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "the prompt has {} tokens and {} more were asked for, but the model's context is {}; "
        "shorten one of them",
        n_given, request.max_tokens, c.max_seq_len);
  }
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const layout, LayoutFor(request, *session));
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(*session), layout);
  const int64_t needed_bytes = PeakSequenceBytes(*layout, sequence->max_positions(),
                                                 options_.max_batch_tokens, sequence->n_prompt());
  if (needed_bytes > budget_bytes_) {
    session->cache = std::move(sequence->cache);
    return Error(
        StatusCode::kResourceExhausted,
        "{} tokens need {} of KV memory and the budget is {}; raise --kv-memory, shorten the "
        "request or choose a smaller --kv",
        sequence->max_positions(), FormatBytes(needed_bytes), FormatBytes(budget_bytes_));
  }
  return sequence;
}

StatusOr<Engine::RequestId> Engine::Submit(Request request, TokenCallback on_token,
                                           FinishCallback on_finish, Session session) {
  StatusOr<std::unique_ptr<Sequence>> made = MakeSequence(std::move(request), &session);
  if (made.ok()) {
    (*made)->on_token = std::move(on_token);
    (*made)->on_finish = std::move(on_finish);
  }
  const std::lock_guard lock(mutex_);
  if (!made.ok()) {
    if (session.cache != nullptr) refused_.push_back(std::move(session.cache));
    return made.status();
  }
  const RequestId id = next_id_++;
  (*made)->id = id;
  live_.emplace(id, false);
  arrived_.push_back(*std::move(made));
  return id;
}

bool Engine::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto request = live_.find(id);
  if (request == live_.end() || request->second) return false;
  request->second = true;
  cancelled_.push_back(id);
  return true;
}

int Engine::n_waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(live_.size()) - n_running();
}

// What other threads asked for since the last step.
void Engine::TakeArrivals() {
  std::vector<std::unique_ptr<SequenceCache>> refused;  // freed when the lock is not held
  const std::lock_guard lock(mutex_);
  std::ranges::move(arrived_, std::back_inserter(waiting_));
  arrived_.clear();
  to_cancel_.insert(to_cancel_.end(), cancelled_.begin(), cancelled_.end());
  cancelled_.clear();
  refused.swap(refused_);
}

void Engine::AdmitWaiting() {
  if (waiting_.empty()) return;
  // A sequence that decodes takes a token of every step.
  const size_t max_running = std::min(options_.max_sequences, options_.max_batch_tokens);
  int64_t wanted_bytes = 0;
  for (const auto& s : running_) wanted_bytes += s->WantedBytes(options_.max_batch_tokens);
  while (!waiting_.empty() && running_.size() < max_running) {
    wanted_bytes += waiting_.front()->WantedBytes(options_.max_batch_tokens);
    if (wanted_bytes > budget_bytes_) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    n_running_ = static_cast<int>(running_.size());
    Sequence& s = *running_.back();
    if (s.cache == nullptr) {
      s.cache = std::make_unique<SequenceCache>(s.layout, pool_);
      s.cache->set_n_prompt(s.n_prompt(), s.request.max_tokens);
    }
    if (observer() != nullptr) observer()->OnAdmitted(s.id, s.since_submit.Milliseconds());
  }
}

void Engine::ShareTokenBudget() {
  int64_t n_left = options_.max_batch_tokens;
  for (const bool decodes : {true, false}) {
    for (const auto& s : running_) {
      if (s->decodes() != decodes) continue;
      s->TakeInput(n_left);
      n_left -= static_cast<int64_t>(s->input.size());
    }
  }
}

void Engine::PreemptNewest() {
  std::unique_ptr<Sequence> newest = std::move(running_.back());
  running_.pop_back();
  n_running_ = static_cast<int>(running_.size());
  newest->cache.reset();
  newest->input.clear();
  ++newest->outcome.n_preemptions;
  const RequestId id = newest->id;
  waiting_.push_front(std::move(newest));
  if (observer() != nullptr) observer()->OnPreempted(id);
}

// Gives up the cache that the newest waiting session brought with it. False when there is none.
bool Engine::DropWaitingCache() {
  const auto newest = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                   [](const auto& s) { return s->cache != nullptr; });
  if (newest == waiting_.rend()) return false;
  (*newest)->cache.reset();
  ++(*newest)->outcome.n_preemptions;
  return true;
}

// Makes room for the input of a sequence, if need be at the cost of newer ones and at last of
// itself. The oldest has no room only when others use its pool.
Status Engine::ExtendOrPreempt(Sequence* sequence) {
  for (;;) {
    const Status status = sequence->cache->Extend(static_cast<int>(sequence->input.size()));
    if (status.code() != StatusCode::kResourceExhausted) return status;
    if (DropWaitingCache()) continue;
    if (running_.size() == 1) return status;
    const bool is_newest = running_.back().get() == sequence;
    PreemptNewest();
    if (is_newest) return OkStatus();
  }
}

// Oldest first, so that who is preempted is not in the batch yet.
std::vector<SequenceStep> Engine::BuildBatch(StepWork* work) {
  ShareTokenBudget();
  std::vector<SequenceStep> steps;
  batch_.clear();
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
    const bool is_last = s->n_cached() == s->n_known();
    steps.push_back({s->cache.get(), s->input,
                     is_last ? SequenceStep::Logits::kLast : SequenceStep::Logits::kNone});
    batch_.push_back(s);
    (decodes ? work->n_decode_tokens : work->n_fill_tokens) += static_cast<int>(s->input.size());
    ++i;
  }
  work->n_sequences = static_cast<int>(steps.size());
  return steps;
}

void Engine::TakeTokens(const std::vector<SequenceStep>& steps) {
  int64_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool has_row = steps[i].logits == SequenceStep::Logits::kLast;
    if (!failures_[i].ok()) {
      Fail(batch_[i], std::move(failures_[i]));
    } else if (has_row) {
      TakeToken(batch_[i], model_->logits(row));
    }
    row += has_row ? 1 : 0;
  }
}

void Engine::TakeToken(Sequence* s, std::span<const float> logits) {
  const StatusOr<int32_t> sampled = s->sampler.Sample(logits);
  if (!sampled.ok()) {
    Fail(s, NotFinite(s->n_cached() - 1));
    return;
  }
  const int32_t token = *sampled;
  if (s->outcome.tokens.empty()) {
    s->outcome.ttft_ms = s->since_submit.Milliseconds();
    s->since_first_token.Restart();
    if (observer() != nullptr) observer()->OnFirstToken(s->id, s->outcome.ttft_ms);
  }
  const auto& stops = s->request.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    Finish(s, FinishReason::kStop);
    return;
  }
  s->tokens.push_back(token);
  s->outcome.tokens.push_back(token);
  FinishReason reason = s->on_token ? s->on_token(s->id, token) : FinishReason::kNone;
  if (observer() != nullptr) observer()->OnToken(s->id, token);
  if (reason == FinishReason::kNone &&
      static_cast<int>(s->outcome.tokens.size()) == s->request.max_tokens) {
    reason = FinishReason::kLength;
  }
  if (reason != FinishReason::kNone) Finish(s, reason);
}

// From those that run or wait.
std::unique_ptr<Engine::Sequence> Engine::Remove(Sequence* sequence) {
  const auto is_it = [&](const auto& s) { return s.get() == sequence; };
  const auto take = [](auto& from, auto place) {
    std::unique_ptr<Sequence> taken = std::move(*place);
    from.erase(place);
    return taken;
  };
  const auto running = std::ranges::find_if(running_, is_it);
  if (running == running_.end()) return take(waiting_, std::ranges::find_if(waiting_, is_it));
  std::unique_ptr<Sequence> taken = take(running_, running);
  n_running_ = static_cast<int>(running_.size());
  return taken;
}

void Engine::Finish(Sequence* sequence, FinishReason reason) {
  const std::unique_ptr<Sequence> finished = Remove(sequence);
  // The cache of a failed step is good for nothing, and its blocks may be wanted by the callback.
  const bool has_failed = reason == FinishReason::kFailed;
  {
    // Who cancelled it was promised that it ends so.
    const std::lock_guard lock(mutex_);
    if (live_.extract(finished->id).mapped()) reason = FinishReason::kCancelled;
  }
  RequestOutcome& outcome = finished->outcome;
  outcome.finish_reason = reason;
  if (reason == FinishReason::kCancelled) {
    outcome.status = Error(StatusCode::kCancelled, "the request was cancelled");
  }
  if (reason == FinishReason::kFailed) first_failure_.Update(outcome.status);
  if (!outcome.tokens.empty()) outcome.decode_seconds = finished->since_first_token.Seconds();
  outcome.n_cached_tokens = static_cast<int>(finished->n_cached());
  if (finished->cache != nullptr) outcome.kv_bytes = finished->cache->bytes();
  if (has_failed) finished->cache.reset();
  finishing_ = finished.get();
  if (finished->on_finish) finished->on_finish(finished->id, outcome);
  finishing_ = nullptr;
  finished->cache.reset();
  if (observer() != nullptr) observer()->OnFinished(finished->id, outcome);
}

void Engine::Fail(Sequence* sequence, Status status) {
  sequence->outcome.status = std::move(status);
  Finish(sequence, FinishReason::kFailed);
}

// Oldest first. Callbacks may submit, which adds to those that wait alone.
void Engine::FailRunning(const Status& status) {
  while (!running_.empty()) Fail(running_.front().get(), status);
}

Engine::Sequence* Engine::Find(RequestId id) const {
  const auto is_it = [&](const auto& s) { return s->id == id; };
  const auto running = std::find_if(running_.begin(), running_.end(), is_it);
  if (running != running_.end()) return running->get();
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), is_it);
  return waiting == waiting_.end() ? nullptr : waiting->get();
}

// Callbacks may cancel more, which the next step ends.
void Engine::FinishCancelled() {
  for (const RequestId id : std::exchange(to_cancel_, {})) {
    Sequence* const sequence = Find(id);
    if (sequence != nullptr) Finish(sequence, FinishReason::kCancelled);
  }
}

// All that are there now: callbacks may submit more.
void Engine::CancelAll() {
  for (const auto& s : running_) to_cancel_.push_back(s->id);
  for (const auto& s : waiting_) to_cancel_.push_back(s->id);
  FinishCancelled();
}

EngineLoad Engine::Load() const {
  return {.n_running = n_running(), .n_waiting = n_waiting(), .pool = pool_->usage()};
}

Session Engine::TakeSession(RequestId id) {
  KVL_CHECK(finishing_ != nullptr);
  Sequence& s = *finishing_;
  KVL_CHECK_EQ(s.id, id);
  s.turn_ends.push_back(static_cast<int>(s.n_known()));
  if (s.n_cached() + 1 < s.n_known()) s.cache.reset();
  return {std::move(s.tokens), std::move(s.turn_ends), s.request.sampling, s.sampler.n_draws(),
          std::move(s.cache)};
}

void Engine::Compute(const std::vector<SequenceStep>& steps, const StepWork& work) {
  const Stopwatch watch;
  if (observer() != nullptr) observer()->OnStepBegan(work, Load());
  const Status status = model_->ForwardEach(steps, &failures_);
  if (status.ok()) {
    TakeTokens(steps);
  } else {
    FailRunning(status);
  }
  if (observer() != nullptr) observer()->OnStepEnded(work, Load(), watch.Seconds(), status);
}

bool Engine::Step() {
  TakeArrivals();
  if (options_.is_interrupted && options_.is_interrupted()) {
    CancelAll();
    return false;
  }
  FinishCancelled();
  AdmitWaiting();
  StepWork work = {.step_idx = n_steps_};
  const std::vector<SequenceStep> steps = BuildBatch(&work);
  if (!steps.empty()) {
    ++n_steps_;
    Compute(steps, work);
  }
  const std::lock_guard lock(mutex_);
  return !live_.empty();
}

Status Engine::RunUntilIdle() {
  first_failure_ = OkStatus();
  while (Step()) {
  }
  return first_failure_;
}

}  // namespace kvlathe
