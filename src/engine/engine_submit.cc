// What requests have to be before the engine takes them.
#include <algorithm>
#include <span>
#include <utility>

#include "base/units.h"
#include "engine/drafts/draft_room.h"
#include "engine/engine.h"

namespace kvlathe {
namespace {

Status CheckLogprobs(const Request& request, const Session& session) {
  if (!request.n_top_logprobs.has_value()) {
    if (!request.prompt_logprobs) return OkStatus();
    return Error(StatusCode::kInvalidArgument,
                 "log-probabilities of the prompt need a number of likeliest tokens; give 0 to {}",
                 kMaxTopLogprobs);
  }
  const int n = *request.n_top_logprobs;
  if (n < 0 || n > kMaxTopLogprobs) {
    return Error(StatusCode::kInvalidArgument,
                 "log-probabilities of the {} likeliest tokens: give a number from 0 to {}", n,
                 kMaxTopLogprobs);
  }
  if (!request.prompt_logprobs || session.tokens.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "log-probabilities of the prompt are not there behind a session, whose tokens have "
               "been read; start again without it");
}

// What can be said without a layout, which is of one level.
Status CheckRequest(const Request& request, const Session& session,
                    std::span<Model* const> levels) {
  const ModelConfig& c = levels.front()->config();
  if (request.level < 0 || request.level >= std::ssize(levels)) {
    return Error(StatusCode::kInvalidArgument, "level {}: there are {} levels, from 0 on",
                 request.level, levels.size());
  }
  const int64_t n_given = std::ssize(session.tokens) + std::ssize(request.prompt);
  if (n_given == 0) return Error(StatusCode::kInvalidArgument, "the prompt has no tokens");
  if (session.cache != nullptr && session.cache->n_tokens() >= n_given) {
    return Error(StatusCode::kInvalidArgument,
                 "the session ended with the end of sequence; give it a prompt to go on");
  }
  if (session.cache != nullptr && session.level != request.level) {
    return Error(StatusCode::kInvalidArgument,
                 "level {}: the session's cache is of level {}; go on with that, or start again",
                 request.level, session.level);
  }
  if (request.max_tokens < 1) {
    return Error(StatusCode::kInvalidArgument, "max_tokens is {}; give at least 1",
                 request.max_tokens);
  }
  if (request.pooling && (request.max_tokens != 1 || !session.tokens.empty())) {
    return Error(StatusCode::kInvalidArgument,
                 "hidden states are of a prompt without a session and without an answer");
  }
  if (request.prompt_sink != nullptr &&
      (request.max_tokens != 1 || !session.tokens.empty() || n_given <= kLeastSharedTokens)) {
    return Error(StatusCode::kInvalidArgument,
                 "what is read for another machine is a prompt of more than {} tokens without a "
                 "session and without an answer",
                 kLeastSharedTokens);
  }
  KVL_RETURN_IF_ERROR(request.sampling.Check());
  KVL_RETURN_IF_ERROR(request.sampling.CheckVocabulary(c.vocab_size));
  KVL_RETURN_IF_ERROR(CheckLogprobs(request, session));
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= c.vocab_size) {
      return Error(StatusCode::kInvalidArgument, "token id {} is outside the vocabulary of {}", id,
                   c.vocab_size);
    }
  }
  // The last token is generated and never read, so that a prompt may fill the context.
  if (n_given + request.max_tokens - 1 > c.max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "the prompt has {} tokens and {} more were asked for, but the model's context is {}; "
        "shorten one of them",
        n_given, request.max_tokens, c.max_seq_len);
  }
  return OkStatus();
}

}  // namespace

StatusOr<const CacheLayout*> Engine::LayoutFor(const Request& request, const Session& session) {
  Model* const model = levels_[request.level];
  const CacheLayout* const kept =
      session.cache != nullptr ? &session.cache->layout() : &model->layout();
  if (!request.rate.has_value()) return kept;
  const std::lock_guard lock(layout_mutex_);
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const wanted, model->LayoutAt(*request.rate));
  if (session.cache == nullptr || wanted == kept) return wanted;
  return Error(StatusCode::kInvalidArgument,
               "rate={}: the session's cache has another rate; go on without one, or start again",
               *request.rate);
}

// Leaves the session as it is unless it succeeds.
StatusOr<std::unique_ptr<EngineSequence>> Engine::MakeSequence(Request request, Session* session) {
  KVL_RETURN_IF_ERROR(CheckRequest(request, *session, levels_));
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const layout, LayoutFor(request, *session));
  if (request.drafter != nullptr) KVL_RETURN_IF_ERROR(CheckDrafts(*layout));
  if (request.prompt_sink != nullptr) {
    KVL_CHECK(!options_.identities.empty() && SharesPrefixes(*layout));
    request.refuses_pressure = true;
  }
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(*session), layout);
  if (!options_.identities.empty()) {
    sequence->prefix_key.identity = &options_.identities[sequence->request.level];
  }
  const int64_t needed_bytes = LeastBytesAlone(*layout, sequence->max_positions(),
                                               options_.max_batch_tokens, sequence->n_prompt);
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

StatusOr<RequestId> Engine::Submit(Request request, TokenCallback on_token,
                                   FinishCallback on_finish, Session session) {
  StatusOr<std::unique_ptr<Sequence>> made = MakeSequence(std::move(request), &session);
  if (!made.ok()) {
    if (session.cache != nullptr) inbox_.GiveBack(std::move(session.cache));
    return made.status();
  }
  (*made)->on_token = std::move(on_token);
  (*made)->on_finish = std::move(on_finish);
  const StatusOr<RequestId> id = inbox_.Add(&*made);
  if (!id.ok() && (*made)->cache != nullptr) inbox_.GiveBack(std::move((*made)->cache));
  return id;
}

}  // namespace kvlathe
