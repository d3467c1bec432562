#include "engine/request_inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvlathe {

int RequestInbox::NumWaiting() const { return static_cast<int>(live_.size()) - n_running(); }

StatusOr<RequestId> RequestInbox::Add(std::unique_ptr<EngineSequence>* sequence) {
  const std::lock_guard lock(mutex_);
  if (max_waiting_ > 0 && NumWaiting() >= max_waiting_) {
    return Error(StatusCode::kUnavailable, "the queue is full: {} requests wait; try again later",
                 NumWaiting());
  }
  const RequestId id = next_id_++;
  (*sequence)->id = id;
  live_.emplace(id, false);
  arrived_.push_back(std::move(*sequence));
  has_come_.notify_one();
  return id;
}

void RequestInbox::GiveBack(std::unique_ptr<SequenceCache> cache) {
  const std::lock_guard lock(mutex_);
  given_back_.push_back(std::move(cache));
  has_come_.notify_one();
}

bool RequestInbox::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto request = live_.find(id);
  if (request == live_.end() || request->second) return false;
  request->second = true;
  cancelled_.push_back(id);
  return true;
}

void RequestInbox::Take(std::vector<std::unique_ptr<EngineSequence>>* arrived,
                        std::vector<RequestId>* cancelled) {
  std::vector<std::unique_ptr<SequenceCache>> given_back;  // freed when the lock is not held
  const std::lock_guard lock(mutex_);
  std::ranges::move(arrived_, std::back_inserter(*arrived));
  arrived_.clear();
  cancelled->insert(cancelled->end(), cancelled_.begin(), cancelled_.end());
  cancelled_.clear();
  given_back.swap(given_back_);
}

bool RequestInbox::Remove(RequestId id) {
  const std::lock_guard lock(mutex_);
  return live_.extract(id).mapped();
}

int RequestInbox::n_waiting() const {
  const std::lock_guard lock(mutex_);
  return NumWaiting();
}

bool RequestInbox::is_empty() const {
  const std::lock_guard lock(mutex_);
  return live_.empty();
}

bool RequestInbox::WaitForWork(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  has_come_.wait_for(lock, at_most,
                     [&] { return was_woken_ || !live_.empty() || !given_back_.empty(); });
  was_woken_ = false;
  return !live_.empty();
}

void RequestInbox::Wake() {
  const std::lock_guard lock(mutex_);
  was_woken_ = true;
  has_come_.notify_one();
}

}  // namespace kvlathe
