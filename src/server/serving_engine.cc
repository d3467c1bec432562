#include "server/serving_engine.h"

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace kvlathe::server {

ServingEngine::ServingEngine(std::vector<Model*> levels, BlockPool* pool, EngineOptions options,
                             AfterStep after_step, Auditor* auditor)
    : pool_(pool),
      after_step_(std::move(after_step)),
      auditor_(auditor),
      engine_(std::move(levels), pool, WithInterrupt(std::move(options))) {}

ServingEngine::~ServingEngine() { Stop(); }

EngineOptions ServingEngine::WithInterrupt(EngineOptions options) {
  options.is_interrupted = [this] { return stops_.load(std::memory_order_relaxed); };
  return options;
}

void ServingEngine::Start() {
  thread_ = std::thread([this] { Run(); });
}

void ServingEngine::Stop() {
  if (!thread_.joinable()) return;
  stops_ = true;
  engine_.Wake();
  thread_.join();
}

void ServingEngine::StepUntilIdle() {
  bool has_more = true;
  while (has_more && !stops_) {
    const Stopwatch watch;
    has_more = engine_.Step();
    after_step_(pool_->usage());
    if (auditor_ != nullptr && has_more) auditor_->AfterStep(watch.Seconds());
  }
}

void ServingEngine::Run() {
  while (!stops_) {
    const bool has_audit = auditor_ != nullptr && auditor_->has_work();
    // Only what comes from other threads ends the wait early: Wake, a request, a cancellation.
    const int wait_ms = has_audit ? 0 : engine_.is_saving_prefixes() ? 5 : 1000;
    const bool has_requests = engine_.WaitForWork(std::chrono::milliseconds(wait_ms));
    if (has_audit && !has_requests) auditor_->WorkIdle();
    StepUntilIdle();
  }
  engine_.Step();  // the interrupted step, which cancels all
  after_step_(pool_->usage());
}

}  // namespace kvlathe::server
