// What a server counts of itself, from its /metrics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "load_generation/http_client.h"

namespace kvlathe {

// Sums over all labels of series with vLLM's names (Prometheus text); none where the server has no
// such series.
struct ServerCounters {
  std::optional<double> queue_seconds, queue_count;  // vllm:request_queue_time_seconds
  std::optional<double> preemptions;                 // vllm:num_preemptions_total
  std::optional<double> prefix_hits;                 // vllm:prefix_cache_hits_total, tokens

  static ServerCounters Parse(std::string_view prometheus_text);
};

// Of a server without /metrics: nothing.
ServerCounters ReadServerCounters(const ServerAddress& server, const std::string& api_key);

}  // namespace kvlathe
