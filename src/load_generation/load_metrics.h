// What a run of a load measured, in the terms of `vllm bench serve`.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "load_generation/load_run.h"

namespace kvlathe {

// As numpy.percentile: linear between the two nearest values. `percent` in [0, 100]; 0 of no
// values.
double PercentileOf(std::vector<double> values, double percent);

// Milliseconds. All 0 where there are no values.
struct Distribution {
  double mean = 0, median = 0, std = 0;  // std: of the population, as numpy.std
  std::vector<double> percentiles;       // in the order of the percents that were asked for
};
Distribution DistributionOf(const std::vector<double>& seconds, std::span<const double> percents);

// Bounds in milliseconds that a good request keeps; those that are not there are not asked of it.
struct GoodputBounds {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool has_any() const { return ttft_ms || tpot_ms || e2el_ms; }
  // "ttft:200", "tpot:50", "e2el:3000".
  static StatusOr<GoodputBounds> Parse(std::span<const std::string> bounds);
};

struct LoadMetrics {
  int64_t completed = 0, failed = 0;
  double duration_s = 0;
  int64_t total_input = 0, total_output = 0;                 // tokens of requests that succeeded
  double request_throughput = 0;                             // that succeeded, a second
  std::optional<double> request_goodput;                     // that kept all bounds, a second
  double output_throughput = 0, total_token_throughput = 0;  // tokens a second
  double max_output_tokens_per_s =
      0;  // pieces of text in the best second, counted from the first request
  int max_concurrent_requests = 0;
  // Times of requests that succeeded: to the first text; by further token; between pieces of text;
  // from sent to the end; from due to sent; from due to the end by generated token.
  Distribution ttft, tpot, itl, e2el, client_queue, normalized;
  // The 90th percentile of normalised latency with failed requests as infinitely slow; none where
  // that is infinite. A rate counts as served by this.
  std::optional<double> p90_normalized_of_all_ms;
  std::map<std::string, int64_t> errors;  // failed requests by kind
  int64_t n_short = 0;                    // that succeeded with fewer tokens than were asked for
  bool is_counted_by_server = true;       // tokens by usage; else pieces of text
};

// Percentiles of normalised latency are always those of kNormalizedPercents; of all else
// `percents`.
inline constexpr double kNormalizedPercents[] = {90, 99};
LoadMetrics MetricsOf(const LoadRecords& records, std::span<const double> percents,
                      const GoodputBounds& bounds);

}  // namespace kvlathe
