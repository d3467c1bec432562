// Sums up the moments of what attention makes of values (CalibrationStatistics::outputs).
#pragma once

#include <atomic>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/moment_sums.h"
#include "model/observer.h"

namespace kvlathe {

// Cost per token and layer: head_dim^2 / 2 multiply-adds for each query head. Memory: one
// [head_dim, head_dim] f64 matrix per KV head.
class OutputMoments {
 public:
  // `pool` outlives the sums.
  OutputMoments(const StatisticsShape& shape, ThreadPool* pool, Isa isa);

  // Outputs at the first kCalibrationSinks positions do not count.
  void Observe(const OutputsView& view);
  void AppendTo(SumBytes* bytes) { sums_.AppendTo(bytes); }
  // Fills in `outputs`. kDataLoss, with the layer, if some were not finite.
  Status Finish(CalibrationStatistics* statistics) const;

 private:
  struct Scratch {  // of a worker
    explicit Scratch(Isa isa) : adder(isa) {}
    std::vector<float> rows;
    MomentAdder adder;
  };

  StatisticsShape shape_;
  ThreadPool* pool_;
  std::vector<Scratch> scratch_;  // [n_workers]
  JointSums sums_;                // [n_layers * n_kv_heads]
  std::atomic<int> bad_layer_{-1};
};

}  // namespace kvlathe
