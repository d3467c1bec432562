// A StreamPinger keeps idle streams alive: proxies close a connection on which nothing comes for a
// minute.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/api/exchange.h"

namespace kvlathe::api {

// A thread of its own that wakes a few times in `ping_seconds`. Any thread may call Watch.
class StreamPinger {
 public:
  // 0: no pings, and no thread.
  explicit StreamPinger(double ping_seconds);

  // Has the exchange ping when its stream is idle, for as long as somebody else holds it.
  void Watch(std::weak_ptr<Exchange> exchange);

 private:
  void Run(const std::stop_token& stop);
  void PostPings();

  double ping_seconds_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::weak_ptr<Exchange>> watched_;  // under mutex_
  std::jthread thread_;                           // last: it uses the others
};

}  // namespace kvlathe::api
