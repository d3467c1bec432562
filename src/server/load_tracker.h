// A LoadTracker knows how much work waits at this replica, in tokens: what a router that looks for
// the shortest queue needs to know.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/metrics.h"

namespace kvlathe::server {

// A request counts with its prompt until it has a token, and with the tokens that it is expected to
// generate until it ends: its max_tokens, or the mean of the answers that have ended if that is
// less. Any thread may call.
class LoadTracker {
 public:
  void Begin(const std::string& request_id, int64_t prompt_tokens, int64_t max_output_tokens);
  void FirstToken(const std::string& request_id);
  void End(const std::string& request_id, int64_t output_tokens);

  QueueLoad load() const;
  // From 100, nothing waits, down to 1, at which `full_tokens` or more do.
  int FreePercent(int64_t full_tokens) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, QueueLoad> requests_;
  QueueLoad load_;          // their sum
  double mean_output_ = 0;  // of ended requests, the newest counting most; 0: none has ended
};

}  // namespace kvlathe::server
