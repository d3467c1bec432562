// GET /health says whether the engine computes.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "server/http/http_exchange.h"
#include "server/step_clock.h"

namespace kvlathe::server {

// A server that has loaded its model may still be unable to run it, so the answer comes from a step
// of the engine: one that ended a moment ago, one that is under way, or, when the engine is idle, a
// request of one token that the check makes itself.
class HealthCheck {
 public:
  // Both outlive it. `probe_token` is any token of the vocabulary.
  HealthCheck(Engine* engine, const StepClock* step_clock, int32_t probe_token)
      : engine_(engine), step_clock_(step_clock), probe_token_(probe_token) {}

  // 200 {"status":"ok"}, or 503 with an error that says what is wrong. Any thread.
  void Answer(std::shared_ptr<http::Reply> reply);

 private:
  void Probe(std::shared_ptr<http::Reply> reply);
  void AnswerAll(const Status& status);

  Engine* engine_;
  const StepClock* step_clock_;
  int32_t probe_token_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<http::Reply>> waiting_;  // under mutex_, for the probe under way
};

// 503 with Retry-After, for what another try or another replica may answer.
http::Response UnavailableResponse(const std::string& message,
                                   const std::string& code = "unavailable");

}  // namespace kvlathe::server
