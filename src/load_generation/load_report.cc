#include "load_generation/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

struct ReportedMetric {
  const char *key, *name, *title;
  Distribution LoadMetrics::*values;
};
constexpr ReportedMetric kReported[] = {
    {"ttft", "TTFT", "Time to First Token", &LoadMetrics::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &LoadMetrics::tpot},
    {"itl", "ITL", "Inter-token Latency", &LoadMetrics::itl},
    {"e2el", "E2EL", "End-to-end Latency", &LoadMetrics::e2el},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing", &LoadMetrics::client_queue},
};

// "99", "99.9".
std::string PercentText(double percent) { return fmt::format("{:g}", percent); }

std::string Row(const std::string& name, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", name, value);
}
std::string Row(const std::string& name, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", name, value);
}

std::string Section(const std::string& title, const std::string& name, const Distribution& values,
                    std::span<const double> percents) {
  std::string text = fmt::format("{:-^50}\n", title);
  text += Row(fmt::format("Mean {}:", name), values.mean);
  text += Row(fmt::format("Median {}:", name), values.median);
  for (size_t i = 0; i < percents.size(); ++i) {
    text += Row(fmt::format("P{} {}:", PercentText(percents[i]), name), values.percentiles[i]);
  }
  return text;
}

void AddDistribution(const std::string& key, const Distribution& values,
                     std::span<const double> percents, nlohmann::json* json) {
  (*json)["mean_" + key + "_ms"] = values.mean;
  (*json)["median_" + key + "_ms"] = values.median;
  (*json)["std_" + key + "_ms"] = values.std;
  for (size_t i = 0; i < percents.size(); ++i) {
    (*json)[fmt::format("p{}_{}_ms", PercentText(percents[i]), key)] = values.percentiles[i];
  }
}

bool IsReported(const ReportOptions& options, const char* key) {
  return std::ranges::find(options.percentile_metrics, key) != options.percentile_metrics.end();
}

nlohmann::json OrNull(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

Status CheckPercentileMetrics(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::any_of(kReported, [&](const auto& known) { return known.key == name; }))
      continue;
    return Error(
        StatusCode::kInvalidArgument,
        "--percentile-metrics: no '{}'; there are ttft, tpot, itl, e2el and client_queue_time",
        name);
  }
  return OkStatus();
}

std::string ToText(const LoadMetrics& m, const ReportOptions& options) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  text += Row("Successful requests:", m.completed);
  text += Row("Failed requests:", m.failed);
  if (options.max_concurrency > 0) {
    text += Row("Maximum request concurrency:", int64_t{options.max_concurrency});
  }
  if (std::isfinite(options.rate)) text += Row("Request rate configured (RPS):", options.rate);
  text += Row("Benchmark duration (s):", m.duration_s);
  text += Row("Total input tokens:", m.total_input);
  text += Row("Total generated tokens:", m.total_output);
  text += Row("Request throughput (req/s):", m.request_throughput);
  if (m.request_goodput) text += Row("Request goodput (req/s):", *m.request_goodput);
  text += Row("Output token throughput (tok/s):", m.output_throughput);
  text += Row("Peak output token throughput (tok/s):", m.max_output_tokens_per_s);
  text += Row("Peak concurrent requests:", static_cast<double>(m.max_concurrent_requests));
  text += Row("Total token throughput (tok/s):", m.total_token_throughput);
  for (const ReportedMetric& metric : kReported) {
    if (!IsReported(options, metric.key)) continue;
    text += Section(metric.title, fmt::format("{} (ms)", metric.name), m.*metric.values,
                    options.percents);
  }
  text += Section("Normalized Latency (per output token)", "normalized latency (ms)", m.normalized,
                  kNormalizedPercents);
  for (const auto& [kind, count] : m.errors) text += Row(fmt::format("Failed ({}):", kind), count);
  if (m.n_short > 0) text += Row("Answers shorter than asked for:", m.n_short);
  if (!m.is_counted_by_server)
    text += "Output tokens are pieces of text: the server sends no usage.\n";
  return text + std::string(50, '=') + "\n";
}

nlohmann::json ToJson(const LoadMetrics& m, const ReportOptions& options) {
  nlohmann::json json = {
      {"duration", m.duration_s},
      {"completed", m.completed},
      {"failed", m.failed},
      {"total_input_tokens", m.total_input},
      {"total_output_tokens", m.total_output},
      {"request_throughput", m.request_throughput},
      {"request_goodput", OrNull(m.request_goodput)},
      {"output_throughput", m.output_throughput},
      {"total_token_throughput", m.total_token_throughput},
      {"max_output_tokens_per_s", m.max_output_tokens_per_s},
      {"max_concurrent_requests", m.max_concurrent_requests},
  };
  for (const ReportedMetric& metric : kReported) {
    if (IsReported(options, metric.key)) {
      AddDistribution(metric.key, m.*metric.values, options.percents, &json);
    }
  }
  AddDistribution("normalized_latency", m.normalized, kNormalizedPercents, &json);
  json["p90_normalized_latency_of_all_ms"] = OrNull(m.p90_normalized_of_all_ms);
  json["errors_by_kind"] = m.errors;
  json["short_outputs"] = m.n_short;
  json["tokens_counted_by"] = m.is_counted_by_server ? "usage" : "pieces of text";
  return json;
}

nlohmann::json DetailsOf(const LoadRecords& records) {
  nlohmann::json json;
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors"}) {
    json[key] = nlohmann::json::array();
  }
  for (const RequestRecord& request : records.requests) {
    json["input_lens"].push_back(request.n_input);
    json["output_lens"].push_back(request.n_output);
    json["ttfts"].push_back(request.ttft_s);
    json["itls"].push_back(request.itl_s);
    json["latencies"].push_back(request.latency_s);
    json["start_times"].push_back(request.start_s);
    json["queue_times"].push_back(request.client_queue_s());
    json["generated_texts"].push_back(request.text);
    json["errors"].push_back(
        request.succeeded() ? "" : fmt::format("{}: {}", request.error_kind, request.error));
  }
  return json;
}

}  // namespace kvlathe
