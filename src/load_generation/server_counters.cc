#include "load_generation/server_counters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvlathe {
namespace {

// "name{label=\"a b\"} 1.5 [timestamp]" -> its value, if the name is that; else none.
std::optional<double> ValueIn(std::string_view line, std::string_view name) {
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (line.starts_with('{')) {
    const size_t end = line.rfind('}');
    if (end == std::string_view::npos) return std::nullopt;
    line.remove_prefix(end + 1);
  } else if (!line.starts_with(' ')) {
    return std::nullopt;  // a longer name
  }
  const std::string number(line);
  char* stop = nullptr;
  const double value = std::strtod(number.c_str(), &stop);
  if (stop == number.c_str() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

ServerCounters ServerCounters::Parse(std::string_view text) {
  ServerCounters counters;
  const std::pair<std::string_view, std::optional<double>*> series[] = {
      {"vllm:request_queue_time_seconds_sum", &counters.queue_seconds},
      {"vllm:request_queue_time_seconds_count", &counters.queue_count},
      {"vllm:num_preemptions_total", &counters.preemptions},
      {"vllm:prefix_cache_hits_total", &counters.prefix_hits},
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    for (const auto& [name, sum] : series) {
      if (const auto value = ValueIn(line, name)) *sum = sum->value_or(0) + *value;
    }
  }
  return counters;
}

ServerCounters ReadServerCounters(const ServerAddress& server, const std::string& api_key) {
  const auto answer = CallAndWait(server, {"GET", "/metrics", "", api_key, 10});
  if (!answer.ok() || answer->status != 200) return {};
  return ServerCounters::Parse(answer->body);
}

}  // namespace kvlathe
