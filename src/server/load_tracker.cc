#include "server/load_tracker.h"

#include <algorithm>
#include <cmath>

namespace kvlathe::server {

void LoadTracker::Begin(const std::string& request_id, int64_t prompt_tokens,
                        int64_t max_output_tokens) {
  const std::lock_guard lock(mutex_);
  int64_t n_output = max_output_tokens;
  if (mean_output_ > 0)
    n_output = std::min(n_output, static_cast<int64_t>(std::ceil(mean_output_)));
  const QueueLoad of_request = {prompt_tokens, n_output};
  if (!requests_.emplace(request_id, of_request).second) return;
  load_.n_prompt_tokens += of_request.n_prompt_tokens;
  load_.n_output_tokens += of_request.n_output_tokens;
}

void LoadTracker::FirstToken(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto request = requests_.find(request_id);
  if (request == requests_.end()) return;
  load_.n_prompt_tokens -= request->second.n_prompt_tokens;
  request->second.n_prompt_tokens = 0;
}

void LoadTracker::End(const std::string& request_id, int64_t output_tokens) {
  // An answer weighs a sixteenth, as long as there are that many.
  constexpr double kNewestWeight = 1.0 / 16;
  const std::lock_guard lock(mutex_);
  const auto request = requests_.find(request_id);
  if (request == requests_.end()) return;
  load_.n_prompt_tokens -= request->second.n_prompt_tokens;
  load_.n_output_tokens -= request->second.n_output_tokens;
  requests_.erase(request);
  if (output_tokens <= 0) return;
  const double difference = static_cast<double>(output_tokens) - mean_output_;
  mean_output_ += mean_output_ > 0 ? kNewestWeight * difference : difference;
}

QueueLoad LoadTracker::load() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

int LoadTracker::FreePercent(int64_t full_tokens) const {
  const double share =
      static_cast<double>(load().total()) / static_cast<double>(std::max<int64_t>(full_tokens, 1));
  return std::clamp(static_cast<int>(std::lround(100 * (1 - share))), 1, 100);
}

}  // namespace kvlathe::server
