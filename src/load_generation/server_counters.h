// Reads what a server counts of itself in its /metrics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "load_generation/http_client.h"

namespace kvlathe {

// Holds series with vLLM's names (Prometheus text), added up over all labels. A series that the
// server does not have is not there.
struct ServerCounters {
  std::optional<double> queue_seconds, queue_count;  // vllm:request_queue_time_seconds
  std::optional<double> preemptions;                 // vllm:num_preemptions_total
  std::optional<double> prefix_hits;                 // vllm:prefix_cache_hits_total, tokens

  static ServerCounters Parse(std::string_view prometheus_text);
};

// Asks a server. One without /metrics has no counters.
ServerCounters ReadServerCounters(const ServerAddress& server, const std::string& api_key);

}  // namespace kvlathe
