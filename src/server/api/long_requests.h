// Requests with long bodies are handled on a thread of their own: to parse and to tokenise
// megabytes takes seconds, in which the threads of HTTP answer others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvlathe::api {

// Any thread may call Add. What has not begun when it is destroyed is dropped.
class LongRequests {
 public:
  // Shorter bodies are handled in milliseconds, where they come.
  static constexpr int64_t kMinBodyBytes = 64 << 10;
  // Of all bodies that wait.
  static constexpr int64_t kMaxWaitingBytes = 64 << 20;

  LongRequests();

  // Calls `handle` on the thread, behind what was added before. False: too much waits already.
  bool Add(int64_t n_body_bytes, std::function<void()> handle);

 private:
  struct Waiting {
    int64_t n_body_bytes;
    std::function<void()> handle;
  };
  void Run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Waiting> waiting_;  // this and the next: under mutex_
  int64_t n_waiting_bytes_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace kvlathe::api
