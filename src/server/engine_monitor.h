// By its monitor the server learns of its engine: metrics, and when it computed last.
#pragma once

#include <chrono>
#include <functional>
#include <unordered_map>
#include <utility>

#include "engine/engine.h"
#include "server/metrics.h"
#include "server/step_clock.h"

namespace kvlathe::server {

class EngineMonitor : public EngineObserver {
 public:
  using OnAnswer = std::function<void(const AnsweredRequest&)>;

  // `metrics` outlives it. `on_answer` is called on the thread that steps.
  EngineMonitor(ServerMetrics* metrics, OnAnswer on_answer)
      : metrics_(metrics), on_answer_(std::move(on_answer)) {}

  const StepClock& step_clock() const { return step_clock_; }

  void OnAdmitted(RequestId id, double queue_ms) override;
  void OnPrefixFound(RequestId id, int n_prompt, int n_stored) override;
  void OnPressed(RequestId id, int64_t n_positions) override;
  void OnPreempted(RequestId id) override;
  void OnDrafted(RequestId id, int n_checked, int n_accepted) override;
  void OnStepBegan(const StepWork& work, const EngineLoad& load) override;
  void OnFirstToken(RequestId id, double ttft_ms) override;
  void OnToken(RequestId id, int32_t token) override;
  void OnAnswered(RequestId, const AnsweredRequest& answered) override { on_answer_(answered); }
  void OnFinished(RequestId id, const RequestOutcome& outcome) override;
  void OnStepEnded(const StepWork& work, const EngineLoad& load, double seconds,
                   const Status& status) override;

 private:
  using Clock = std::chrono::steady_clock;

  ServerMetrics* metrics_;
  OnAnswer on_answer_;
  StepClock step_clock_;
  std::unordered_map<RequestId, Clock::time_point> last_tokens_;  // of running requests
};

}  // namespace kvlathe::server
