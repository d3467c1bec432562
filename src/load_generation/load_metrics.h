// Makes figures of what a run of a load measured, in the terms of `vllm bench serve`.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "load_generation/load_run.h"

namespace kvlathe {

// Returns a percentile as numpy.percentile does, linear between the two nearest values. `percent`
// is in [0, 100]. Of no values it is 0.
double PercentileOf(std::vector<double> values, double percent);

// Describes values in milliseconds. Where there are none all is 0.
struct Distribution {
  double mean = 0, median = 0, std = 0;  // std: of the population, as numpy.std
  std::vector<double> percentiles;       // in the order of the percents that were asked for
};
Distribution DistributionOf(const std::vector<double>& seconds, std::span<const double> percents);

// The bounds in milliseconds that a good request keeps. A bound that is not there is not asked for.
struct GoodputBounds {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool has_any() const { return ttft_ms || tpot_ms || e2el_ms; }
  // Reads bounds such as "ttft:200", "tpot:50" and "e2el:3000".
  static StatusOr<GoodputBounds> Parse(std::span<const std::string> bounds);
};

struct LoadMetrics {
  int64_t completed = 0, failed = 0;
  double duration_s = 0;
  int64_t total_input = 0, total_output = 0;                 // tokens of requests that succeeded
  double request_throughput = 0;                             // that succeeded, a second
  std::optional<double> request_goodput;                     // that kept all bounds, a second
  double output_throughput = 0, total_token_throughput = 0;  // tokens a second
  // The pieces of text in the best second, counted from the first request.
  double max_output_tokens_per_s = 0;
  int max_concurrent_requests = 0;
  // These are of requests that succeeded. ttft is the time from sent to the first text, tpot that
  // of each further token, itl that between pieces of text, e2el that from sent to the end,
  // client_queue that from due to sent, and normalized that from due to the end divided by the
  // generated tokens.
  Distribution ttft, tpot, itl, e2el, client_queue, normalized;
  // The 90th percentile of normalised latency where failed requests count as infinitely slow. It is
  // not there where that makes it infinite. Whether a rate is served is decided by this one.
  std::optional<double> p90_normalized_of_all_ms;
  std::map<std::string, int64_t> errors;  // failed requests by kind
  int64_t n_short = 0;                    // that succeeded with fewer tokens than were asked for
  bool is_counted_by_server = true;       // tokens by usage; else pieces of text
};

// Computes all figures. The percentiles of normalised latency are always those of
// kNormalizedPercents, the others those of `percents`.
inline constexpr double kNormalizedPercents[] = {90, 99};
LoadMetrics MetricsOf(const LoadRecords& records, std::span<const double> percents,
                      const GoodputBounds& bounds);

}  // namespace kvlathe
