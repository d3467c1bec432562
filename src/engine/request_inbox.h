// Any thread leaves in the inbox what the thread that steps the engine is to do.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/engine_sequence.h"

namespace kvlathe {

// All but Take may be called by any thread. The lock is never held while the model computes or a
// callback runs.
class RequestInbox {
 public:
  // max_waiting as EngineOptions has it.
  explicit RequestInbox(int max_waiting) : max_waiting_(max_waiting) {}

  // Gives the sequence an id and leaves it. kUnavailable when as many wait as may; the sequence
  // stays with the caller then.
  StatusOr<RequestId> Add(std::unique_ptr<EngineSequence>* sequence);
  // A cache of the pool, which only the thread that steps may free.
  void GiveBack(std::unique_ptr<SequenceCache> cache);
  // False when there is none of that id or it is cancelled already.
  bool Cancel(RequestId id);

  // Appends what came since the last call, oldest first, and frees the caches that were given back.
  void Take(std::vector<std::unique_ptr<EngineSequence>>* arrived,
            std::vector<RequestId>* cancelled);
  // A sequence has come to its end. Whether it was cancelled before.
  bool Remove(RequestId id);

  int n_running() const { return n_running_.load(std::memory_order_relaxed); }
  void set_n_running(size_t n) { n_running_ = static_cast<int>(n); }
  // Those that are not at their end and do not run.
  int n_waiting() const;
  bool is_empty() const;  // whether none is left, running or waiting

  // Engine::WaitForWork and Engine::Wake.
  bool WaitForWork(std::chrono::milliseconds at_most);
  void Wake();

 private:
  int NumWaiting() const;  // under mutex_

  const int max_waiting_;
  std::atomic<int> n_running_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable has_come_;
  // Under mutex_.
  RequestId next_id_ = 1;
  bool was_woken_ = false;
  std::unordered_map<RequestId, bool> live_;  // not finished yet; true: cancelled
  std::vector<std::unique_ptr<EngineSequence>> arrived_;
  std::vector<RequestId> cancelled_;
  std::vector<std::unique_ptr<SequenceCache>> given_back_;
};

}  // namespace kvlathe
