// Everything that computes shares one pool of workers. Workers spin briefly between jobs (a decode
// step has a hundred of them, microseconds apart) and then park, so that an idle engine uses no
// CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// A non-owning reference to a callable, so that a job needs no allocation.
class WorkerFunction {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, WorkerFunction>)
      WorkerFunction(F&& f)  // NOLINT(google-explicit-constructor): a call site passes a lambda
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, int worker_id) {
          (*static_cast<std::remove_reference_t<F>*>(object))(worker_id);
        }) {}
  void operator()(int worker_id) const { call_(object_, worker_id); }

 private:
  void* object_;
  void (*call_)(void*, int);
};

class ThreadPool {
 public:
  // n_workers >= 1; the calling thread is worker 0, so n_workers - 1 threads are started.
  explicit ThreadPool(int n_workers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Binds worker i >= 1 to the i-th of the processors that the calling thread may use, one for
  // each. Worker 0, the caller, stays free and finds the one that is left: what it starts later
  // would inherit its place. kInvalidArgument when there are more workers than processors.
  Status Pin();

  int n_workers() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls fn(worker_id) once on every worker and returns when all are done. Not reentrant, and from
  // one thread at a time. fn must not throw.
  void Run(WorkerFunction fn);

 private:
  void WorkerLoop(int worker_id);

  std::vector<std::thread> threads_;
  const WorkerFunction* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> n_pending_{0};
  std::atomic<int> n_parked_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// The share [begin, end) of n items that worker_id of n_workers takes, in multiples of `step`.
// With fewer steps than workers the first workers have the work.
struct Range {
  int64_t begin;
  int64_t end;
};
inline Range ShareOf(int64_t n, int64_t step, int worker_id, int n_workers) {
  const int64_t n_steps = (n + step - 1) / step;
  const auto share_begin = [&](int64_t id) {
    return (n_steps * id + n_workers - 1) / n_workers * step;
  };
  const int64_t begin = share_begin(worker_id), end = share_begin(worker_id + 1);
  return {begin < n ? begin : n, end < n ? end : n};
}

// Number of processors this process may use.
int AvailableProcessors();

}  // namespace kvlathe
