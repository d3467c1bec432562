#include "server/engine_monitor.h"

namespace kvlathe::server {

void EngineMonitor::OnAdmitted(RequestId, double queue_ms) { metrics_->CountAdmitted(queue_ms); }

void EngineMonitor::OnPrefixFound(RequestId, int n_prompt, int n_stored) {
  metrics_->CountPrefix(n_prompt, n_stored);
}

void EngineMonitor::OnPreempted(RequestId) { metrics_->CountPreempted(); }

void EngineMonitor::OnDrafted(RequestId, int n_checked, int n_accepted) {
  metrics_->CountDrafted(n_checked, n_accepted);
}

void EngineMonitor::OnPressed(RequestId, int64_t n_positions) {
  metrics_->CountPressed(n_positions);
}

void EngineMonitor::OnStepBegan(const StepWork&, const EngineLoad& load) {
  step_clock_.Begin();
  metrics_->SetRequests(load.n_running, load.n_waiting);
}

void EngineMonitor::OnFirstToken(RequestId, double ttft_ms) { metrics_->CountFirstToken(ttft_ms); }

void EngineMonitor::OnToken(RequestId id, int32_t) {
  metrics_->CountToken();
  const Clock::time_point now = Clock::now();
  const auto [last, is_first] = last_tokens_.try_emplace(id, now);
  if (is_first) return;
  metrics_->CountTokenAfter(std::chrono::duration<double>(now - last->second).count());
  last->second = now;
}

void EngineMonitor::OnFinished(RequestId id, const RequestOutcome&) { last_tokens_.erase(id); }

void EngineMonitor::OnStepEnded(const StepWork& work, const EngineLoad& load, double seconds,
                                const Status& status) {
  step_clock_.End(!status.ok());
  metrics_->CountStep(work, seconds, !status.ok());
  metrics_->SetRequests(load.n_running, load.n_waiting);
  metrics_->SetReferenceBytes(load.reference_bytes);
}

}  // namespace kvlathe::server
