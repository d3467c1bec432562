#include "load_generation/simulation/simulated_sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace kvlathe {
namespace {

constexpr int kAlone = 5;      // requests of the client that is alone
constexpr int kMostRates = 9;  // 0.5 to 8 times the throughput of a closed loop

StatusOr<LoadMetrics> RunOnce(SimulatedServer* server, const SimulatedCache& cache,
                              const SweepOptions& options, int64_t kv_bytes, double rate,
                              int64_t n_requests, int n_clients) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workload> workload,
                       MakeDrawnWorkload(RandomIds{kSimulatedVocabulary}, options.input,
                                         options.output, options.seed));
  const LoadOptions load = {.arrivals = {.rate = rate, .seed = options.seed},
                            .n_requests = n_requests,
                            .max_concurrency = n_clients};
  KVL_ASSIGN_OR_RETURN(const LoadRecords records,
                       server->Serve(*workload, load,
                                     {.costs = cache.costs,
                                      .kv_bytes = kv_bytes,
                                      .max_batch_tokens = options.max_batch_tokens,
                                      .max_sequences = options.n_clients}));
  return MetricsOf(records, kNormalizedPercents, GoodputBounds());
}

}  // namespace

StatusOr<SweepBase> MeasureBase(const SimulatedCache& uncompressed, const SweepOptions& options) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<SimulatedServer> server,
                       SimulatedServer::Create(uncompressed.spec));
  const double mean = options.input.mean + options.output.mean;
  const double longest = options.input.max + options.output.max;
  const double n_tokens = std::max(options.n_sequences * mean, 1.25 * longest + 64);
  SweepBase base;
  base.kv_bytes = static_cast<int64_t>(std::ceil(n_tokens)) * server->bytes_per_token();
  constexpr double kClosed = std::numeric_limits<double>::infinity();
  KVL_ASSIGN_OR_RETURN(const LoadMetrics alone, RunOnce(server.get(), uncompressed, options,
                                                        base.kv_bytes, kClosed, kAlone, 1));
  KVL_ASSIGN_OR_RETURN(const LoadMetrics full,
                       RunOnce(server.get(), uncompressed, options, base.kv_bytes, kClosed,
                               options.n_requests, options.n_clients));
  base.bound_ms = options.slo_factor * alone.normalized.median;
  base.closed_loop_per_s = full.request_throughput;
  for (int i = 0; i < kMostRates; ++i) {
    base.rates_per_s.push_back(0.5 * full.request_throughput * std::pow(2, 0.5 * i));
  }
  return base;
}

StatusOr<SimulatedSweep> SimulateSweep(const SimulatedCache& cache, const SweepBase& base,
                                       const SweepOptions& options) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<SimulatedServer> server,
                       SimulatedServer::Create(cache.spec));
  SimulatedSweep sweep;
  std::vector<RatePoint> points;
  for (const double rate : base.rates_per_s) {
    KVL_ASSIGN_OR_RETURN(LoadMetrics metrics, RunOnce(server.get(), cache, options, base.kv_bytes,
                                                      rate, options.n_requests, options.n_clients));
    points.push_back({rate, metrics.p90_normalized_of_all_ms});
    sweep.runs.push_back({rate, std::move(metrics)});
    if (!points.back().p90_ms.has_value() || *points.back().p90_ms > base.bound_ms) break;
  }
  sweep.served = ServedRateOf(points, base.bound_ms);
  return sweep;
}

}  // namespace kvlathe
