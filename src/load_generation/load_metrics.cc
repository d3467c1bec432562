#include "load_generation/load_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvlathe {
namespace {

bool IsGood(const RequestRecord& request, const GoodputBounds& bounds) {
  const auto keeps = [](const std::optional<double>& bound_ms, double seconds) {
    return !bound_ms.has_value() || 1000 * seconds <= *bound_ms;
  };
  return keeps(bounds.ttft_ms, request.ttft_s) && keeps(bounds.tpot_ms, request.tpot_s()) &&
         keeps(bounds.e2el_ms, request.latency_s);
}

// Most pieces of text in one of the seconds since the first request that succeeded was sent.
double MostPiecesInASecond(const std::vector<const RequestRecord*>& succeeded) {
  double first = std::numeric_limits<double>::infinity();
  for (const RequestRecord* request : succeeded) first = std::min(first, request->start_s);
  std::map<int64_t, int64_t> pieces;
  for (const RequestRecord* request : succeeded) {
    double at = request->start_s + request->ttft_s - first;
    ++pieces[static_cast<int64_t>(at)];
    for (const double itl : request->itl_s) ++pieces[static_cast<int64_t>(at += itl)];
  }
  int64_t most = 0;
  for (const auto& [second, count] : pieces) most = std::max(most, count);
  return static_cast<double>(most);
}

int MostAtTheSameTime(const std::vector<const RequestRecord*>& succeeded) {
  std::vector<std::pair<double, int>> changes;  // an end sorts before a start at the same moment
  for (const RequestRecord* request : succeeded) {
    changes.emplace_back(request->start_s, 1);
    changes.emplace_back(request->start_s + request->latency_s, -1);
  }
  std::ranges::sort(changes);
  int now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

std::optional<double> NinetiethOfAll(const LoadRecords& records) {
  std::vector<double> values;
  for (const RequestRecord& request : records.requests) {
    values.push_back(request.succeeded() ? request.normalized_latency_s()
                                         : std::numeric_limits<double>::infinity());
  }
  if (values.empty()) return std::nullopt;
  const double value = PercentileOf(std::move(values), 90);
  return std::isfinite(value) ? std::optional<double>(1000 * value) : std::nullopt;
}

void SetDistributions(const std::vector<const RequestRecord*>& succeeded,
                      std::span<const double> percents, LoadMetrics* metrics) {
  std::vector<double> ttft, tpot, itl, e2el, queue, normalized;
  for (const RequestRecord* request : succeeded) {
    ttft.push_back(request->ttft_s);
    if (request->n_output > 1) tpot.push_back(request->tpot_s());
    itl.insert(itl.end(), request->itl_s.begin(), request->itl_s.end());
    e2el.push_back(request->latency_s);
    queue.push_back(request->client_queue_s());
    normalized.push_back(request->normalized_latency_s());
  }
  metrics->ttft = DistributionOf(ttft, percents);
  metrics->tpot = DistributionOf(tpot, percents);
  metrics->itl = DistributionOf(itl, percents);
  metrics->e2el = DistributionOf(e2el, percents);
  metrics->client_queue = DistributionOf(queue, percents);
  metrics->normalized = DistributionOf(normalized, kNormalizedPercents);
}

}  // namespace

double PercentileOf(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double share = at - static_cast<double>(low);
  if (share == 0) return values[low];  // infinite neighbours have no share in it
  return values[low] + share * (values[high] - values[low]);
}

Distribution DistributionOf(const std::vector<double>& seconds, std::span<const double> percents) {
  Distribution result;
  const auto n = static_cast<double>(std::max<size_t>(1, seconds.size()));
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / n;
  double squares = 0;
  for (const double value : seconds) squares += (value - mean) * (value - mean);
  result.mean = 1000 * mean;
  result.std = 1000 * std::sqrt(squares / n);
  result.median = 1000 * PercentileOf(seconds, 50);
  for (const double percent : percents) {
    result.percentiles.push_back(1000 * PercentileOf(seconds, percent));
  }
  return result;
}

StatusOr<GoodputBounds> GoodputBounds::Parse(std::span<const std::string> bounds) {
  GoodputBounds parsed;
  for (const std::string& bound : bounds) {
    const size_t colon = std::min(bound.find(':'), bound.size());
    const std::string name = bound.substr(0, colon);
    std::optional<double>* const target = name == "ttft"   ? &parsed.ttft_ms
                                          : name == "tpot" ? &parsed.tpot_ms
                                          : name == "e2el" ? &parsed.e2el_ms
                                                           : nullptr;
    double value = 0;
    const char* const begin = bound.data() + std::min(colon + 1, bound.size());
    const char* const end = bound.data() + bound.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (target == nullptr || error != std::errc() || stop != end || !(value >= 0) ||
        !std::isfinite(value)) {
      return Error(StatusCode::kInvalidArgument,
                   "--goodput {}: not NAME:MILLISECONDS with ttft, tpot or e2el, such as ttft:200",
                   bound);
    }
    *target = value;
  }
  return parsed;
}

LoadMetrics MetricsOf(const LoadRecords& records, std::span<const double> percents,
                      const GoodputBounds& bounds) {
  LoadMetrics metrics;
  std::vector<const RequestRecord*> succeeded;
  int64_t n_good = 0;
  for (const RequestRecord& request : records.requests) {
    if (!request.succeeded()) {
      ++metrics.failed;
      ++metrics.errors[request.error_kind];
      continue;
    }
    succeeded.push_back(&request);
    metrics.total_input += request.n_input;
    metrics.total_output += request.n_output;
    metrics.n_short += request.n_output < request.n_asked;
    metrics.is_counted_by_server &= request.is_counted_by_server;
    n_good += IsGood(request, bounds);
  }
  metrics.completed = static_cast<int64_t>(succeeded.size());
  metrics.duration_s = records.duration_s;
  const auto by_second = [&](int64_t count) {
    return records.duration_s > 0 ? static_cast<double>(count) / records.duration_s : 0;
  };
  metrics.request_throughput = by_second(metrics.completed);
  if (bounds.has_any()) metrics.request_goodput = by_second(n_good);
  metrics.output_throughput = by_second(metrics.total_output);
  metrics.total_token_throughput = by_second(metrics.total_input + metrics.total_output);
  metrics.max_output_tokens_per_s = MostPiecesInASecond(succeeded);
  metrics.max_concurrent_requests = MostAtTheSameTime(succeeded);
  metrics.p90_normalized_of_all_ms = NinetiethOfAll(records);
  SetDistributions(succeeded, percents, &metrics);
  return metrics;
}

}  // namespace kvlathe
