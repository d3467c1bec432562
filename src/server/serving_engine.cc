#include "server/serving_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace kvlathe::server {

namespace {

constexpr std::chrono::milliseconds kNoWait{0};
constexpr std::chrono::milliseconds kLongestWait{1000};
// Clients that ask one request after the other leave shorter gaps, in which a piece of an audit
// would hold the next one up.
constexpr std::chrono::milliseconds kQuiet{100};

// Between two parts of what is copied to disk, while nothing else is to do.
constexpr std::chrono::milliseconds kBetweenCopies{5};

}  // namespace

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
    if (auditor_ != nullptr) auditor_->AfterStep(watch.Seconds());
  }
}

void ServingEngine::Run() {
  bool is_quiet = true;  // no request came for a while
  while (!stops_) {
    const bool has_audit = auditor_ != nullptr && auditor_->has_work();
    // Only what comes from other threads ends the wait early: Wake, a request, a cancellation.
    std::chrono::milliseconds wait = kLongestWait;
    if (has_audit) wait = is_quiet ? kNoWait : kQuiet;
    if (engine_.is_saving_prefixes()) wait = std::min(wait, kBetweenCopies);
    const bool has_requests = engine_.WaitForWork(wait);
    is_quiet = !has_requests && (is_quiet || wait >= kQuiet);
    if (!has_requests && wait == kLongestWait) engine_.AskRanks();
    if (has_audit && is_quiet && !stops_) auditor_->WorkIdle();
    StepUntilIdle();
  }
  engine_.Step();  // the interrupted step, which cancels all
  after_step_(pool_->usage());
}

}  // namespace kvlathe::server
