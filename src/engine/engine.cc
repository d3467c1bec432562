#include "engine/engine.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "format/block_layout.h"

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

  Sequence(RequestId request_id, Request r, Session session, const CacheLayout* cache_layout)
      : id(request_id),
        request(std::move(r)),
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
    : model_(model), pool_(pool), options_(options) {
  KVL_CHECK_GE(options_.max_batch_tokens, 1);
  KVL_CHECK_GE(options_.max_sequences, 1);
}

Engine::~Engine() = default;

StatusOr<const CacheLayout*> Engine::LayoutFor(const Request& request, const Session& session) {
  const CacheLayout* const kept =
      session.cache != nullptr ? &session.cache->layout() : &model_->layout();
  if (!request.rate.has_value()) return kept;
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const wanted, model_->LayoutAt(*request.rate));
  if (session.cache == nullptr || wanted == kept) return wanted;
  return Error(StatusCode::kInvalidArgument,
               "rate={}: the session's cache has another rate; go on without one, or start again",
               *request.rate);
}

StatusOr<Engine::RequestId> Engine::Submit(Request request, TokenCallback on_token,
                                           FinishCallback on_finish, Session session) {
  const ModelConfig& c = model_->config();
  const int64_t n_given = std::ssize(session.tokens) + std::ssize(request.prompt);
  if (n_given == 0) return Error(StatusCode::kInvalidArgument, "the prompt has no tokens");
  if (session.cache != nullptr && session.cache->n_tokens() >= n_given) {
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
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const layout, LayoutFor(request, session));
  auto sequence =
      std::make_unique<Sequence>(next_id_, std::move(request), std::move(session), layout);
  const int64_t needed_bytes = PeakSequenceBytes(*layout, sequence->max_positions(),
                                                 options_.max_batch_tokens, sequence->n_prompt());
  const int64_t budget = pool_->usage().budget_bytes;
  if (needed_bytes > budget) {
    return Error(
        StatusCode::kResourceExhausted,
        "{} tokens need {} of KV memory and the budget is {}; raise --kv-memory, shorten the "
        "request or choose a smaller --kv",
        sequence->max_positions(), FormatBytes(needed_bytes), FormatBytes(budget));
  }
  sequence->on_token = std::move(on_token);
  sequence->on_finish = std::move(on_finish);
  waiting_.push_back(std::move(sequence));
  return next_id_++;
}

void Engine::AdmitWaiting() {
  if (waiting_.empty()) return;
  // A sequence that decodes takes a token of every step.
  const size_t max_running = std::min(options_.max_sequences, options_.max_batch_tokens);
  const int64_t budget = pool_->usage().budget_bytes;
  int64_t wanted_bytes = 0;
  for (const auto& s : running_) wanted_bytes += s->WantedBytes(options_.max_batch_tokens);
  while (!waiting_.empty() && running_.size() < max_running) {
    wanted_bytes += waiting_.front()->WantedBytes(options_.max_batch_tokens);
    if (wanted_bytes > budget) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    std::unique_ptr<SequenceCache>& cache = running_.back()->cache;
    if (cache != nullptr) continue;
    cache = std::make_unique<SequenceCache>(running_.back()->layout, pool_);
    cache->set_n_prompt(running_.back()->n_prompt(), running_.back()->request.max_tokens);
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
  newest->cache.reset();
  newest->input.clear();
  ++newest->outcome.n_preemptions;
  waiting_.push_front(std::move(newest));
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
std::vector<SequenceStep> Engine::BuildBatch() {
  ShareTokenBudget();
  std::vector<SequenceStep> steps;
  batch_.clear();
  for (size_t i = 0; i < running_.size();) {
    Sequence* s = running_[i].get();
    if (s->input.empty()) {
      ++i;
      continue;
    }
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
    ++i;
  }
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
  }
  const auto& stops = s->request.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    Finish(s, FinishReason::kStop);
    return;
  }
  s->tokens.push_back(token);
  s->outcome.tokens.push_back(token);
  FinishReason reason = s->on_token ? s->on_token(s->id, token) : FinishReason::kNone;
  if (reason == FinishReason::kNone &&
      static_cast<int>(s->outcome.tokens.size()) == s->request.max_tokens) {
    reason = FinishReason::kLength;
  }
  if (reason != FinishReason::kNone) Finish(s, reason);
}

void Engine::Finish(Sequence* sequence, FinishReason reason) {
  RequestOutcome& outcome = sequence->outcome;
  outcome.finish_reason = reason;
  if (!outcome.tokens.empty()) outcome.decode_seconds = sequence->since_first_token.Seconds();
  outcome.n_cached_tokens = static_cast<int>(sequence->n_cached());
  if (sequence->cache != nullptr) outcome.kv_bytes = sequence->cache->bytes();
  // The cache of a failed step is good for nothing, and its blocks may be wanted by the callback.
  if (reason == FinishReason::kFailed) sequence->cache.reset();
  if (sequence->on_finish) sequence->on_finish(sequence->id, outcome);
  const auto is_it = [&](const auto& s) { return s.get() == sequence; };
  if (std::erase_if(running_, is_it) == 0) std::erase_if(waiting_, is_it);
}

void Engine::Fail(Sequence* sequence, Status status) {
  first_failure_.Update(status);
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

bool Engine::Cancel(RequestId id) {
  Sequence* const sequence = Find(id);
  if (sequence == nullptr) return false;
  Finish(sequence, FinishReason::kCancelled);
  return true;
}

// All that are there now: callbacks may submit more.
void Engine::CancelAll() {
  std::vector<RequestId> ids;
  for (const auto& s : running_) ids.push_back(s->id);
  for (const auto& s : waiting_) ids.push_back(s->id);
  for (const RequestId id : ids) Cancel(id);
}

Session Engine::TakeSession(RequestId id) {
  Sequence* const sequence = Find(id);
  KVL_CHECK(sequence != nullptr);
  Sequence& s = *sequence;
  KVL_CHECK(s.outcome.finish_reason != FinishReason::kNone);
  s.turn_ends.push_back(static_cast<int>(s.n_known()));
  if (s.n_cached() + 1 < s.n_known()) s.cache.reset();
  return {std::move(s.tokens), std::move(s.turn_ends), s.request.sampling, s.sampler.n_draws(),
          std::move(s.cache)};
}

bool Engine::Step() {
  if (options_.is_interrupted && options_.is_interrupted()) {
    CancelAll();
    return false;
  }
  AdmitWaiting();
  if (running_.empty()) return false;
  const std::vector<SequenceStep> steps = BuildBatch();
  const Status status = model_->ForwardEach(steps, &failures_);
  if (status.ok()) {
    TakeTokens(steps);
  } else {
    FailRunning(status);
  }
  return !running_.empty() || !waiting_.empty();
}

Status Engine::RunUntilIdle() {
  first_failure_ = OkStatus();
  while (Step()) {
  }
  return first_failure_;
}

}  // namespace kvlathe
