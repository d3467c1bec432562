#include "server/api/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

namespace kvlathe::api {

void MinTokensConstraint::Mask(std::span<float> logits) {
  if (n_left_ == 0) return;
  for (const int32_t id : end_ids_) {
    if (id >= 0 && id < std::ssize(logits)) logits[id] = -std::numeric_limits<float>::infinity();
  }
}

Status MinTokensConstraint::Accept(int32_t) {
  if (n_left_ > 0) --n_left_;
  return OkStatus();
}

Generation::Choice::Choice(const Tokenizer* tokenizer, ChoicePlan plan)
    : stream(tokenizer, std::move(plan.stops), plan.detokenizer),
      end_ids(std::move(plan.seen_end_ids)),
      drops_tokens(plan.drops_tokens) {
  stream.ContinueAfter(plan.text_before);
}

Generation::Generation(const ServiceState& state, std::shared_ptr<Exchange> exchange,
                       std::unique_ptr<AnswerWriter> writer)
    : state_(state), exchange_(std::move(exchange)), writer_(std::move(writer)) {}

void Generation::Start(const ServiceState& state, std::shared_ptr<Exchange> exchange,
                       std::unique_ptr<AnswerWriter> writer, std::vector<ChoicePlan> plans) {
  const std::shared_ptr<Generation> generation(
      new Generation(state, std::move(exchange), std::move(writer)));
  const Status status = generation->Submit(std::move(plans));
  if (status.ok()) return generation->Accept();
  {
    const std::lock_guard lock(generation->mutex_);
    generation->phase_ = Phase::kClosed;
    generation->events_.clear();
  }
  generation->Cancel();
  generation->exchange_->record().level.clear();  // it was not accepted
  generation->exchange_->SendError(status);
}

Status Generation::Submit(std::vector<ChoicePlan> plans) {
  // All choices exist before the first token of one may come.
  std::vector<Request> requests;
  for (ChoicePlan& plan : plans) {
    max_tokens_ = std::max<int64_t>(max_tokens_, plan.request.max_tokens);
    plan.request.prefix_salt = exchange_->request().tenant;
    if (!plan.drops_tokens) plan.request.answer_id = AnswerId(choices_.size(), plans.size());
    const auto slot = std::make_shared<Slot>();
    slot->request_id = exchange_->request().id;
    slot->level = exchange_->record().level;
    slot->n_prompt = std::ssize(plan.request.prompt);
    slot->max_tokens = plan.request.max_tokens;
    slot->sampling = plan.request.sampling;
    slot->tenant = exchange_->request().tenant;
    slot->keep_as = plan.slot_id;
    slot->held = {.kv = slot->level, .rate = plan.request.rate, .tokens = plan.request.prompt};
    requests.push_back(std::move(plan.request));
    choices_.push_back(std::make_unique<Choice>(&state_.tokenizer(), std::move(plan)));
    choices_.back()->slot = slot;
    state_.slots().Take(slot);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const int choice_idx = static_cast<int>(i);
    KVL_ASSIGN_OR_RETURN(const Engine::RequestId id,
                         state_.context().engine->Submit(
                             std::move(requests[i]),
                             [self = shared_from_this(), choice_idx](Engine::RequestId,
                                                                     const GeneratedToken& token) {
                               return self->OnToken(choice_idx, token);
                             },
                             [self = shared_from_this(), choice_idx](
                                 Engine::RequestId, const RequestOutcome& outcome) {
                               self->OnFinish(choice_idx, outcome);
                             }));
    ids_.push_back(id);
  }
  return OkStatus();
}

std::string Generation::AnswerId(size_t choice_idx, size_t n_choices) const {
  const std::string& id = exchange_->request().id;
  return n_choices == 1 ? id : fmt::format("{}/{}", id, choice_idx);
}

void Generation::Accept() {
  if (exchange_->observer() != nullptr) {
    const RequestEnded& record = exchange_->record();
    exchange_->observer()->OnBegan({.request_id = record.request_id,
                                    .route = record.route,
                                    .level = record.level,
                                    .is_stream = record.is_stream,
                                    .n_choices = record.n_choices,
                                    .prompt_tokens = record.prompt_tokens,
                                    .max_tokens = max_tokens_});
  }
  exchange_->reply()->Post([self = shared_from_this()] { self->writer_->Begin(); });
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kAccepted;
    is_drain_posted_ = true;
  }
  exchange_->reply()->Post([self = shared_from_this()] { self->Drain(); });
  state_.pinger().Watch(exchange_);
  exchange_->reply()->OnGone([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->is_gone_ = true;
    self->Cancel();
  });
}

void Generation::Cancel() {
  for (const Engine::RequestId id : ids_) state_.context().engine->Cancel(id);
}

FinishReason Generation::OnToken(int choice_idx, const GeneratedToken& token) {
  Choice& choice = *choices_[choice_idx];
  ChoiceEvent event;
  event.choice_idx = choice_idx;
  if (token.prompt_logprobs != nullptr) event.prompt_logprobs = *token.prompt_logprobs;
  bool is_end = false;
  ++choice.slot->n_generated;
  if (!choice.drops_tokens) {
    ++choice.n_tokens;
    is_end = std::ranges::find(choice.end_ids, token.id) != choice.end_ids.end();
    if (!is_end) event.text = choice.stream.Push(token.id);
    if (token.logprobs != nullptr) event.logprobs = *token.logprobs;
  }
  Queue(std::move(event), OkStatus());
  return is_end || choice.stream.stopped() ? FinishReason::kStop : FinishReason::kNone;
}

void Generation::OnFinish(int choice_idx, const RequestOutcome& outcome) {
  Choice& choice = *choices_[choice_idx];
  ChoiceEvent event;
  event.choice_idx = choice_idx;
  event.text = choice.stream.Finish();
  if (outcome.finish_reason == FinishReason::kStop ||
      outcome.finish_reason == FinishReason::kLength) {
    Slot& slot = *choice.slot;
    slot.held.tokens.insert(slot.held.tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
    const int id = slot.keep_as.value_or(slot.id);
    if (id < state_.context().n_slots) {
      state_.slots().Remember(slot.tenant, id, std::move(slot.held));
    }
  }
  choice.slot.reset();
  event.end = ChoiceEnd{.reason = outcome.finish_reason,
                        .n_tokens = choice.n_tokens,
                        .n_stored = outcome.n_prefix_tokens,
                        .n_pressed = outcome.n_pressed_tokens,
                        .n_drafted = outcome.n_drafted_tokens,
                        .n_accepted = outcome.n_accepted_tokens};
  // A dropped token may be the end of the sequence; the answer ended before it.
  if (choice.drops_tokens) event.end->reason = FinishReason::kLength;
  Queue(std::move(event), outcome.status);
}

void Generation::Queue(ChoiceEvent event, Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kClosed) return;
    events_.emplace_back(std::move(event), std::move(status));
    if (phase_ == Phase::kSubmitting || is_drain_posted_) return;
    is_drain_posted_ = true;
  }
  exchange_->reply()->Post([self = shared_from_this()] { self->Drain(); });
}

void Generation::Drain() {
  std::vector<std::pair<ChoiceEvent, Status>> events;
  {
    const std::lock_guard lock(mutex_);
    is_drain_posted_ = false;
    std::swap(events, events_);
  }
  try {
    for (auto& [event, status] : events) TakeEvent(std::move(event), status);
  } catch (const std::exception& error) {  // of the standard library: no memory
    if (writer_ != nullptr) {
      Fail(Error(StatusCode::kInternal, "the answer could not be written: {}", error.what()));
    }
  }
}

void Generation::TakeEvent(ChoiceEvent event, const Status& status) {
  RequestEnded& record = exchange_->record();
  if (writer_ == nullptr) return;  // it has failed
  if (record.first_token_seconds == 0 && !event.end) {
    record.first_token_seconds = exchange_->seconds();
    if (exchange_->observer() != nullptr) exchange_->observer()->OnFirstToken(record.request_id);
  }
  const std::optional<ChoiceEnd> end = event.end;
  if (!end && !choices_[event.choice_idx]->drops_tokens) ++record.output_tokens;
  if (!status.ok() && !is_gone_) return Fail(status);
  if (status.ok()) writer_->Take(std::move(event));
  if (!end) return;
  if (record.finish_reason.empty()) {
    record.finish_reason = end->reason == FinishReason::kLength ? "length" : "stop";
  }
  if (++n_ended_ == std::ssize(choices_)) FinishAll();
}

void Generation::FinishAll() {
  if (is_gone_) {
    exchange_->record().finish_reason = "abort";
    exchange_->CloseGone();
  } else {
    writer_->Finish();
  }
  writer_.reset();
}

void Generation::Fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kClosed;
    events_.clear();
  }
  Cancel();
  const ApiError error = ApiErrorOf(status, /*is_refusal=*/false);
  exchange_->record().finish_reason = "error";
  exchange_->NoteError(error);
  writer_->Fail(error);
  writer_.reset();
}

}  // namespace kvlathe::api
