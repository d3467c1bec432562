// A ServingEngine is an engine with the thread that steps it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/audit/auditor.h"

namespace kvlathe::server {

// Everything that touches the pool or a model happens on its thread, an audit too: behind steps as
// far as its share goes, and freely once no request has come for a tenth of a second. Requests come
// from any thread through engine().
class ServingEngine {
 public:
  // Called on the stepping thread after every step, and after each cancellation or end of a request
  // that took none.
  using AfterStep = std::function<void(const PoolUsage&)>;

  // `levels` and `pool` outlive it, and so does options.observer. options.is_interrupted is its own
  // affair. `auditor` (null: none) outlives it and works on the same thread.
  ServingEngine(std::vector<Model*> levels, BlockPool* pool, EngineOptions options,
                AfterStep after_step, Auditor* auditor);
  ~ServingEngine();  // Stop
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  Engine& engine() { return engine_; }

  // Starts the thread. Until then requests wait.
  void Start();
  // Cancels every request, whose FinishCallback comes with kCancelled, and ends the thread.
  // Requests that are submitted afterwards are never looked at.
  void Stop();

 private:
  EngineOptions WithInterrupt(EngineOptions options);
  void Run();
  void StepUntilIdle();

  std::atomic<bool> stops_ = false;
  BlockPool* pool_;
  AfterStep after_step_;
  Auditor* auditor_;
  Engine engine_;
  std::thread thread_;
};

}  // namespace kvlathe::server
