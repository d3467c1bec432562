#include "base/threads.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <system_error>

#include "base/check.h"

namespace kvlathe {
namespace {

// About 50 microseconds of pauses: longer than the gaps inside a step, short enough to cost nothing
// between requests.
constexpr int kSpins = 2000;

}  // namespace

ThreadPool::ThreadPool(int n_workers) {
  KVL_CHECK_GE(n_workers, 1);
  threads_.reserve(n_workers - 1);
  for (int id = 1; id < n_workers; ++id) threads_.emplace_back([this, id] { WorkerLoop(id); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

Status ThreadPool::Pin() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) {
    return Error(StatusCode::kInternal, "pinning: {}", std::generic_category().message(errno));
  }
  if (n_workers() > CPU_COUNT(&usable)) {
    return Error(StatusCode::kInvalidArgument,
                 "pinning: {} threads, {} processors; use at most one thread per processor",
                 n_workers(), CPU_COUNT(&usable));
  }
  int processor = -1;
  const auto next_processor = [&] {
    do ++processor;
    while (!CPU_ISSET(processor, &usable));
  };
  next_processor();  // of the caller
  for (std::thread& thread : threads_) {
    next_processor();
    cpu_set_t place;
    CPU_ZERO(&place);
    CPU_SET(processor, &place);
    const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(place), &place);
    if (error != 0) {
      return Error(StatusCode::kInternal, "pinning to processor {}: {}", processor,
                   std::generic_category().message(error));
    }
  }
  return OkStatus();
}

void ThreadPool::Run(WorkerFunction fn) {
  if (threads_.empty()) {
    fn(0);
    return;
  }
  job_ = &fn;
  n_pending_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (n_parked_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  fn(0);
  int spins = 0;
  while (n_pending_.load(std::memory_order_acquire) != 0) {
    if (++spins < kSpins) {
      _mm_pause();
    } else {
      std::this_thread::yield();  // more workers than processors
    }
  }
}

void ThreadPool::WorkerLoop(int worker_id) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    uint64_t now;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpins) {
        _mm_pause();
        continue;
      }
      std::unique_lock lock(mutex_);
      n_parked_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      n_parked_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = now;
    if (stop_.load()) return;
    (*job_)(worker_id);
    n_pending_.fetch_sub(1, std::memory_order_release);
  }
}

int AvailableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return static_cast<int>(std::thread::hardware_concurrency());
  }
  return CPU_COUNT(&set);
}

}  // namespace kvlathe
