#include "server/prefill/prefill_route.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "kv/blocks/sequence_stream.h"
#include "server/api/api_error.h"
#include "server/prefill/prompt_question.h"

namespace kvlathe::server {
namespace {

// So much waits for a slow connection, and then the prompt's cache waits in the engine.
constexpr int64_t kMostWaitingBytes = PrefillRoute::kMaxBufferedBytes - 2 * kMostPartBytes;

// The cache of a prompt on its way into an answer.
class ReplySink : public PromptSink {
 public:
  explicit ReplySink(std::shared_ptr<http::Reply> reply) : reply_(std::move(reply)) {}

  bool HasRoom() override { return reply_->n_waiting_bytes() < kMostWaitingBytes; }
  void Write(std::string bytes) override {
    if (n_bytes_ == 0) reply_->BeginStream(http::StreamKind::kBytes);
    n_bytes_ += std::ssize(bytes);
    reply_->Write(std::move(bytes));
  }

  // Returns the status that the client has seen. What breaks off in the middle breaks off there
  // too: the last hold on the reply goes with it.
  int End(const Status& status) {
    if (status.ok()) {
      reply_->EndStream();
      return 200;
    }
    if (n_bytes_ > 0) return 200;
    const api::ApiError error = api::ApiErrorOf(status, /*is_refusal=*/false);
    reply_->Send(api::ErrorResponse(error));
    return error.http_status;
  }
  int64_t n_bytes() const { return n_bytes_; }

 private:
  std::shared_ptr<http::Reply> reply_;
  int64_t n_bytes_ = 0;
};

Status AnotherPlace(const std::string& kv) {
  return Error(StatusCode::kInvalidArgument,
               "this replica has another model, basis, --dtype or -c than the one that asks, for "
               "--kv '{}': start both with the same",
               kv);
}

}  // namespace

PrefillRoute::PrefillRoute(Engine* engine, std::vector<SequenceIdentity> identities,
                           std::string key, Observer observer)
    : engine_(engine),
      identities_(std::move(identities)),
      keys_({std::move(key)}),
      observer_(std::move(observer)) {}

StatusOr<Request> PrefillRoute::RequestOf(const http::Request& http_request) const {
  KVL_ASSIGN_OR_RETURN(PromptQuestion question, ParsePromptQuestion(http_request.body));
  const auto level = std::ranges::find(identities_, question.kv, &SequenceIdentity::spec);
  if (level == identities_.end()) {
    return Error(
        StatusCode::kInvalidArgument,
        "this replica was started without the --kv that was asked for; give both the same");
  }
  Request request;
  request.level = static_cast<int>(level - identities_.begin());
  request.rate = question.rate;
  KVL_ASSIGN_OR_RETURN(const std::string place, engine_->PlaceOf(request.level, request.rate));
  if (place != question.place) return AnotherPlace(question.kv);
  request.prompt = std::move(question.tokens);
  request.max_tokens = 1;
  request.prefix_salt = std::move(question.salt);
  return request;
}

void PrefillRoute::Handle(const http::Request& http_request, std::shared_ptr<http::Reply> reply) {
  const auto refuse = [&](const Status& status) {
    reply->Send(api::ErrorResponse(api::ApiErrorOf(status, /*is_refusal=*/true)));
  };
  StatusOr<Request> request = RequestOf(http_request);
  if (!request.ok()) return refuse(request.status());
  const auto sink = std::make_shared<ReplySink>(reply);
  request->prompt_sink = sink;
  SentPrompt sent = {.request_id = http_request.id, .n_tokens = std::ssize(request->prompt)};
  observer_.on_began(sent.request_id, sent.n_tokens);
  const auto finish = [this, sink, sent, since_begin = Stopwatch()](
                          RequestId, const RequestOutcome& outcome) mutable {
    const bool is_gone = outcome.finish_reason == FinishReason::kCancelled;
    sent.status = outcome.status;
    sent.http_status = sink->End(outcome.status);
    if (is_gone) sent.http_status = 499;
    sent.n_bytes = sink->n_bytes();
    sent.seconds = since_begin.Seconds();
    observer_.on_ended(sent);
  };
  const StatusOr<RequestId> id = engine_->Submit(*std::move(request), nullptr, finish);
  if (id.ok()) return reply->OnGone([engine = engine_, id = *id] { engine->Cancel(id); });
  const api::ApiError error = api::ApiErrorOf(id.status(), /*is_refusal=*/true);
  reply->Send(api::ErrorResponse(error));
  sent.http_status = error.http_status;
  sent.status = id.status();
  observer_.on_ended(sent);
}

}  // namespace kvlathe::server
