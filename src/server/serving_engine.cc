#include "server/serving_engine.h"

#include <chrono>
#include <utility>

namespace kvlathe::server {

ServingEngine::ServingEngine(std::vector<Model*> levels, BlockPool* pool, EngineOptions options,
                             AfterStep after_step)
    : pool_(pool),
      after_step_(std::move(after_step)),
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

void ServingEngine::Run() {
  while (!stops_) {
    // Only what comes from other threads ends the wait early: Wake, a request, a cancellation.
    engine_.WaitForWork(std::chrono::milliseconds(engine_.is_saving_prefixes() ? 5 : 1000));
    bool has_more = true;
    while (has_more && !stops_) {
      has_more = engine_.Step();
      after_step_(pool_->usage());
    }
  }
  engine_.Step();  // the interrupted step, which cancels all
  after_step_(pool_->usage());
}

}  // namespace kvlathe::server
