#include "server/api/long_requests.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <utility>

namespace kvlathe::api {
namespace {

// What a long body took while it was handled goes back to the system: of many small pieces glibc
// keeps the memory for itself otherwise.
void GiveMemoryBack() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

LongRequests::LongRequests() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}

bool LongRequests::Add(int64_t n_body_bytes, std::function<void()> handle) {
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty() && n_waiting_bytes_ + n_body_bytes > kMaxWaitingBytes) return false;
    n_waiting_bytes_ += n_body_bytes;
    waiting_.push_back({n_body_bytes, std::move(handle)});
  }
  wake_.notify_one();
  return true;
}

void LongRequests::Run(const std::stop_token& stop) {
  constexpr int64_t kGivesBackFrom = 1 << 20;
  while (true) {
    Waiting next;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      n_waiting_bytes_ -= next.n_body_bytes;
    }
    if (stop.stop_requested()) return;
    next.handle();
    next.handle = nullptr;
    if (next.n_body_bytes >= kGivesBackFrom) GiveMemoryBack();
  }
}

}  // namespace kvlathe::api
