#include "server/api/stream_pinger.h"

#include <chrono>
#include <utility>

namespace kvlathe::api {

StreamPinger::StreamPinger(double ping_seconds) : ping_seconds_(ping_seconds) {
  if (ping_seconds_ <= 0) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void StreamPinger::Watch(std::weak_ptr<Exchange> exchange) {
  if (ping_seconds_ <= 0) return;
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(exchange));
}

void StreamPinger::Run(const std::stop_token& stop) {
  const std::chrono::duration<double> interval(ping_seconds_ / 4);
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, interval, [] { return false; });
    }
    if (!stop.stop_requested()) PostPings();
  }
}

void StreamPinger::PostPings() {
  std::vector<std::shared_ptr<Exchange>> live;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& watched : watched_) {
      if (auto exchange = watched.lock()) live.push_back(std::move(exchange));
    }
    watched_.assign(live.begin(), live.end());
  }
  for (auto& exchange : live) {
    http::Reply& reply = *exchange->reply();
    reply.Post([this_exchange = std::move(exchange), seconds = ping_seconds_] {
      this_exchange->PingIfIdle(seconds);
    });
  }
}

}  // namespace kvlathe::api
