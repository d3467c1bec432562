#include "engine/engine.h"

#include <algorithm>

#include "base/units.h"

namespace kvlathe {

struct Engine::Sequence {
  RequestId id = 0;
  Request request;
  TokenCallback on_token;
  FinishCallback on_finish;
  Sampler sampler;
  std::unique_ptr<SequenceCache> cache;
  int64_t promised_bytes = 0;
  int n_prefilled = 0;         // prompt tokens in the cache
  std::vector<int32_t> input;  // tokens of the current step
  RequestOutcome outcome;
  Stopwatch since_submit;
  Stopwatch since_first_token;

  Sequence(RequestId request_id, Request r)
      : id(request_id), request(std::move(r)), sampler(request.sampling) {}
  bool in_prefill() const { return n_prefilled < static_cast<int>(request.prompt.size()); }
  // The last generated token is never fed back, so it needs no place in the cache.
  int64_t max_positions() const { return request.prompt.size() + request.max_tokens - 1; }
};

Engine::Engine(Model* model, BlockPool* pool, const EngineOptions& options)
    : model_(model), pool_(pool), options_(options) {}

Engine::~Engine() = default;

StatusOr<Engine::RequestId> Engine::Submit(Request request, TokenCallback on_token,
                                           FinishCallback on_finish) {
  const ModelConfig& c = model_->config();
  const int64_t n_prompt = request.prompt.size();
  if (n_prompt == 0) return Error(StatusCode::kInvalidArgument, "the prompt has no tokens");
  if (request.max_tokens < 1) {
    return Error(StatusCode::kInvalidArgument, "max_tokens is {}; give at least 1",
                 request.max_tokens);
  }
  KVL_RETURN_IF_ERROR(request.sampling.Check());
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= c.vocab_size) {
      return Error(StatusCode::kInvalidArgument, "token id {} is outside the vocabulary of {}", id,
                   c.vocab_size);
    }
  }
  if (n_prompt + request.max_tokens > c.max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "the prompt has {} tokens and {} more were asked for, but the model's context is {}; "
        "shorten one of them",
        n_prompt, request.max_tokens, c.max_seq_len);
  }
  auto sequence = std::make_unique<Sequence>(next_id_, std::move(request));
  sequence->promised_bytes = SequenceBytes(model_->layout(), sequence->max_positions());
  const int64_t budget = pool_->usage().budget_bytes;
  if (sequence->promised_bytes > budget) {
    return Error(
        StatusCode::kResourceExhausted,
        "{} tokens need {} of KV memory and the budget is {}; raise --kv-memory, shorten the "
        "request or choose a smaller --kv",
        sequence->max_positions(), FormatBytes(sequence->promised_bytes), FormatBytes(budget));
  }
  sequence->on_token = std::move(on_token);
  sequence->on_finish = std::move(on_finish);
  waiting_.push_back(std::move(sequence));
  return next_id_++;
}

void Engine::AdmitWaiting() {
  const int64_t budget = pool_->usage().budget_bytes;
  while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.max_sequences &&
         promised_bytes_ + waiting_.front()->promised_bytes <= budget) {
    std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.pop_front();
    sequence->cache = std::make_unique<SequenceCache>(&model_->layout(), pool_);
    promised_bytes_ += sequence->promised_bytes;
    running_.push_back(std::move(sequence));
  }
}

StatusOr<std::vector<SequenceStep>> Engine::BuildBatch() {
  std::vector<SequenceStep> steps;
  batch_.clear();
  const auto add = [&](Sequence* s, SequenceStep::Logits logits) -> Status {
    KVL_RETURN_IF_ERROR(s->cache->Extend(static_cast<int>(s->input.size())));
    steps.push_back({s->cache.get(), s->input, logits});
    batch_.push_back(s);
    return OkStatus();
  };
  int n_left = options_.max_batch_tokens;
  for (const auto& s : running_) {
    if (s->in_prefill() || n_left == 0) continue;
    s->input = {s->outcome.tokens.back()};
    KVL_RETURN_IF_ERROR(add(s.get(), SequenceStep::Logits::kLast));
    --n_left;
  }
  for (const auto& s : running_) {
    if (!s->in_prefill() || n_left == 0) continue;
    const auto first = s->request.prompt.begin() + s->n_prefilled;
    const int n_rest = static_cast<int>(s->request.prompt.end() - first);
    const int n_new = std::min(n_rest, n_left);
    s->input.assign(first, first + n_new);
    KVL_RETURN_IF_ERROR(
        add(s.get(), n_new == n_rest ? SequenceStep::Logits::kLast : SequenceStep::Logits::kNone));
    s->n_prefilled += n_new;
    n_left -= n_new;
  }
  return steps;
}

void Engine::TakeTokens(const std::vector<SequenceStep>& steps) {
  int64_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].logits == SequenceStep::Logits::kNone) continue;
    Sequence* s = batch_[i];
    const int32_t token = s->sampler.Sample(model_->logits(row++));
    if (s->outcome.tokens.empty() && s->outcome.ttft_ms == 0) {
      s->outcome.ttft_ms = s->since_submit.Milliseconds();
      s->since_first_token.Restart();
    }
    const auto& stops = s->request.stop_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      Finish(s, FinishReason::kStop);
      continue;
    }
    s->outcome.tokens.push_back(token);
    if (s->on_token && !s->on_token(s->id, token)) {
      Finish(s, FinishReason::kCancelled);
    } else if (static_cast<int>(s->outcome.tokens.size()) == s->request.max_tokens) {
      Finish(s, FinishReason::kLength);
    }
  }
}

void Engine::Finish(Sequence* sequence, FinishReason reason) {
  sequence->outcome.finish_reason = reason;
  sequence->outcome.decode_seconds = sequence->since_first_token.Seconds();
  sequence->outcome.n_cached_tokens = sequence->cache->n_tokens();
  sequence->outcome.kv_bytes = sequence->cache->bytes();
  if (sequence->on_finish) sequence->on_finish(sequence->id, sequence->outcome);
  promised_bytes_ -= sequence->promised_bytes;
  std::erase_if(running_, [&](const auto& s) { return s.get() == sequence; });
}

StatusOr<bool> Engine::Step() {
  AdmitWaiting();
  if (running_.empty()) return false;
  KVL_ASSIGN_OR_RETURN(const std::vector<SequenceStep> steps, BuildBatch());
  KVL_RETURN_IF_ERROR(model_->Forward(steps));
  TakeTokens(steps);
  return !running_.empty() || !waiting_.empty();
}

Status Engine::RunUntilIdle() {
  for (;;) {
    KVL_ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) return OkStatus();
  }
}

}  // namespace kvlathe
