// The series of /metrics that the replicas of both roles have.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "server/prefill/prefill_client.h"
#include "server/prefill/prefill_route.h"

namespace prometheus {
class Registry;
}

namespace kvlathe::server {

// Of a decode replica. Any thread may call.
class AskedPromptMetrics {
 public:
  // `registry` outlives it; `labels` are on every series.
  AskedPromptMetrics(prometheus::Registry* registry, std::map<std::string, std::string> labels);
  ~AskedPromptMetrics();

  void Count(const PromptAttempt& attempt);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

// Of a prefill replica. Likewise.
class SentPromptMetrics {
 public:
  SentPromptMetrics(prometheus::Registry* registry, std::map<std::string, std::string> labels);
  ~SentPromptMetrics();

  void Count(const SentPrompt& sent);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace kvlathe::server
