// Which request rate a simulated server bears: the papers' experiment, as lab/serving.py does it
// with real ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "load_generation/lengths.h"
#include "load_generation/load_metrics.h"
#include "load_generation/rate_sweep.h"
#include "load_generation/simulation/simulated_server.h"

namespace kvlathe {

// One cache: its spec, and what the steps of its server take.
struct SimulatedCache {
  std::string spec = "none";
  StepCosts costs;
};

struct SweepOptions {
  LengthRange input, output;  // tokens of prompts and of answers
  int n_requests = 100;       // of each rate
  int n_clients = 16;         // requests under way, and sequences of the server, at most
  double n_sequences = 4;     // requests of mean length that the KV memory holds uncompressed, and
                              // always one of the longest
  double slo_factor = 10;     // the bound, over the latency that one client alone sees with `none`
  int max_batch_tokens = 512;
  uint64_t seed = 1;
};

// What is the same for all caches: it is measured with `none`.
struct SweepBase {
  int64_t kv_bytes = 0;
  double bound_ms = 0;              // of p90 of normalized latency
  double closed_loop_per_s = 0;     // requests a second with all clients, one after another each
  std::vector<double> rates_per_s;  // from half of that on, each the last times sqrt(2)
};

struct SimulatedRate {
  double request_rate = 0;
  LoadMetrics metrics;
};

struct SimulatedSweep {
  std::vector<SimulatedRate> runs;  // up to the first rate above the bound
  ServedRate served;                // requests a second
};

// Errors are those of SimulatedServer. `uncompressed` has the spec `none`.
StatusOr<SweepBase> MeasureBase(const SimulatedCache& uncompressed, const SweepOptions& options);
StatusOr<SimulatedSweep> SimulateSweep(const SimulatedCache& cache, const SweepBase& base,
                                       const SweepOptions& options);

}  // namespace kvlathe
