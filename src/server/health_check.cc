#include "server/health_check.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "server/api/api_service.h"

namespace kvlathe::server {

namespace {

constexpr double kRecentSeconds = 1;
// No step of a model that fits a machine takes longer, a whole batch of prompt tokens included.
constexpr double kStalledSeconds = 120;

http::Response OkResponse() { return {.body = R"({"status":"ok"})"}; }

}  // namespace

http::Response UnavailableResponse(const std::string& message, const std::string& code) {
  http::Response response = api::ErrorResponse(503, "unavailable_error", code, message);
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

void HealthCheck::Answer(std::shared_ptr<http::Reply> reply) {
  const double under_way = step_clock_->SecondsUnderWay();
  if (under_way > kStalledSeconds) {
    reply->Send(UnavailableResponse(
        fmt::format("one step of the engine takes {:.0f} s already", under_way)));
  } else if (under_way >= 0 || step_clock_->SecondsSinceGoodStep() < kRecentSeconds) {
    reply->Send(OkResponse());
  } else {
    Probe(std::move(reply));
  }
}

void HealthCheck::Probe(std::shared_ptr<http::Reply> reply) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(reply));
    if (waiting_.size() > 1) return;  // a probe is under way
  }
  Request request;
  request.prompt = {probe_token_};
  request.max_tokens = 1;
  const auto finish = [this](Engine::RequestId, const RequestOutcome& outcome) {
    AnswerAll(outcome.status);
  };
  const Status submitted = engine_->Submit(std::move(request), nullptr, finish).status();
  if (!submitted.ok()) AnswerAll(submitted);
}

void HealthCheck::AnswerAll(const Status& status) {
  std::vector<std::shared_ptr<http::Reply>> replies;
  {
    const std::lock_guard lock(mutex_);
    replies.swap(waiting_);
  }
  for (const auto& reply : replies) {
    reply->Send(status.ok()
                    ? OkResponse()
                    : UnavailableResponse("a step of the engine failed: " + MessageOf(status)));
  }
}

}  // namespace kvlathe::server
