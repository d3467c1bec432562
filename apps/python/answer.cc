#include "python/answer.h"

#include <algorithm>
#include <utility>

#include "kv/capacity.h"

namespace kvlathe::python {

Answer::Answer(const Tokenizer* tokenizer, Ask ask)
    : tokenizer_(*tokenizer),
      ask_(std::move(ask)),
      stream_(tokenizer, ask_.stops,
              {.continues_text = true, .keeps_special = ask_.keeps_special}) {}

StatusOr<Request> Answer::RequestFor(HeldModel* model, int level) {
  const std::shared_ptr<ServingModel> serving = model->serving();
  Request request;
  request.prompt = ask_.prompt;
  request.sampling = ask_.sampling;
  request.level = level;
  request.rate = ask_.rate;
  request.pooling = ask_.pooling;
  request.stop_ids.assign(ask_.stop_ids.begin(), ask_.stop_ids.end());
  if (!ask_.ignores_end) {
    request.stop_ids.insert(request.stop_ids.end(), serving->end_ids.begin(),
                            serving->end_ids.end());
  }
  KVL_RETURN_IF_ERROR(StopMatcher::CheckStops(ask_.stops));
  KVL_ASSIGN_OR_RETURN(const std::optional<DraftOptions> draft, DraftOptions::Parse(ask_.draft));
  request.drafter = MakeDrafter(draft);
  request.prompt_logprobs = ask_.n_prompt_logprobs.has_value();
  if (ask_.n_logprobs.has_value() || request.prompt_logprobs) {
    request.n_top_logprobs =
        std::max(ask_.n_logprobs.value_or(0), ask_.n_prompt_logprobs.value_or(0));
  }
  const int n_given = n_context_ + static_cast<int>(ask_.prompt.size());
  const int n_left = serving->workspace->context_tokens() - n_given;
  if (ask_.pooling.has_value()) {
    request.max_tokens = 1;
    if (n_left >= 0) return request;
  }
  if (n_left < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "the prompt has {} tokens and the context is {}; shorten it, or open the model "
                 "with a larger max_model_len",
                 n_given, serving->workspace->context_tokens());
  }
  request.max_tokens = std::min(n_left, ask_.max_tokens.value_or(n_left));
  return request;
}

std::shared_ptr<Answer> Answer::Submit(HeldModel* model, Ask ask, int level) {
  const std::shared_ptr<ServingModel> serving = model->serving();
  std::shared_ptr<Answer> answer(new Answer(&serving->workspace->tokenizer(), std::move(ask)));
  HeldSession* const held = answer->ask_.session.get();
  if (held != nullptr) {
    held->CheckIsFree();
    if (held->model.get() != model) {
      throw StatusError(Error(StatusCode::kInvalidArgument,
                              "the session is of another model; begin one of this"));
    }
    answer->n_context_ = static_cast<int>(held->session.tokens.size());
  }
  Request request = ValueOrThrow(answer->RequestFor(model, level));
  Session session, kept;  // a refused request takes the cache with it; the tokens stay
  if (held != nullptr) {
    kept = {held->session.tokens,
            held->session.turn_ends,
            held->session.sampling,
            held->session.n_draws,
            nullptr,
            held->session.level};
    session = std::move(held->session);
    if (answer->ask_.prompt.empty()) answer->stream_.ContinueAfter(session.tokens);
  }
  const StatusOr<Engine::RequestId> id = model->engine()->Submit(
      std::move(request),
      [answer](Engine::RequestId, const GeneratedToken& token) { return answer->Take(token); },
      [answer, model, level](Engine::RequestId ended, const RequestOutcome& outcome) {
        answer->End(model, level, ended, outcome);
      },
      std::move(session));
  if (held != nullptr && !id.ok()) held->session = std::move(kept);
  answer->id_ = ValueOrThrow(id);
  if (held != nullptr) held->is_busy = true;
  return answer;
}

void Answer::Append(std::string piece) {
  if (text_.empty() && ask_.drops_added_space && !ids_.empty() && piece.starts_with(' ')) {
    const std::string alone = tokenizer_.Detokenize(std::span(ids_).first(1), ask_.keeps_special);
    if (!alone.starts_with(' ')) piece.erase(0, 1);
  }
  text_ += piece;
}

FinishReason Answer::Take(const GeneratedToken& token) {
  ids_.push_back(token.id);
  if (ask_.n_logprobs.has_value()) logprobs_.push_back(*token.logprobs);
  Append(stream_.Push(token.id));
  return stream_.stopped() ? FinishReason::kStop : FinishReason::kNone;
}

void Answer::End(HeldModel* model, int level, Engine::RequestId id, const RequestOutcome& outcome) {
  outcome_ = outcome;
  Append(stream_.Finish());
  if (stream_.stopped()) {
    stop_ = stream_.stop();
    if (ask_.includes_stop) text_ += stop_;
  }
  const int64_t n_bytes = outcome.kv_bytes.total();
  if (outcome.n_cached_tokens > 0) {
    const CacheLayout& layout = model->level(level).model->whole_layout();
    kv_fraction_ = static_cast<double>(n_bytes) /
                   static_cast<double>(ReferenceBytes(layout, outcome.n_cached_tokens));
  }
  if (HeldSession* const held = ask_.session.get(); held != nullptr) {
    held->session = model->engine()->TakeSession(id);
    held->kv = model->level(level).spec.text();
    held->kv_bytes = n_bytes;
    held->is_busy = false;
  }
  has_ended_ = true;
}

Answer::News Answer::TakeNews() {
  News news = {text_.substr(n_told_bytes_),
               {ids_.begin() + static_cast<int64_t>(n_told_ids_), ids_.end()},
               has_ended_};
  n_told_bytes_ = text_.size();
  n_told_ids_ = ids_.size();
  has_told_end_ = has_ended_;
  return news;
}

}  // namespace kvlathe::python
