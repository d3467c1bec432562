// The moments of rows that hold keys in frames and their values, (x, v), for caches that have one
// map for both (MappedKeys::joins_values).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/joint_adder.h"
#include "calibration/moment_sums.h"
#include "calibration/turning_means.h"

namespace kvlathe {

// Rows of a layer: keys as TurningMeans::FrameRowsWithAngles has them, and [n_rows, n_kv_heads *
// head_dim] of each of the others.
struct KeyValueRows {
  int layer_idx = 0;
  int64_t n_rows = 0;
  const float* keys_with_angles = nullptr;
  const float* values = nullptr;
  // With respect to x and to v; null where there are none.
  const float* key_gradients = nullptr;
  const float* value_gradients = nullptr;
};

// Sums up CalibrationStatistics::key_values. A row weighs |g_x|^2 once and |g_v|^2 once, in sums of
// their own, for how much gradients of keys are in units of those of values is known in the end.
// Memory: for each layer and KeyValueHeads() heads three f64 matrices of as many channels as keys,
// values and angles have together, and F.
class KeyValueSums {
 public:
  // `pool` outlives this. n_pairs and half are those of TurningMeans.
  KeyValueSums(const StatisticsShape& shape, int n_pairs, int half, ThreadPool* pool);

  // Adds rows of the text, without sinks.
  void AddRows(const KeyValueRows& rows);
  // Adds gradients and what they are of.
  void AddGradients(const KeyValueRows& rows);
  // All that was summed up so far.
  void AppendTo(SumBytes* bytes);
  // Writes the moments, with settled means, and releases the sums: call it once. n_tokens: those
  // behind the gradients. kDataLoss naming the layer if gradients were not finite.
  Status Finish(const TurningMeans& means, int64_t n_tokens, CalibrationStatistics* statistics);

 private:
  // (x, v, angles) of the heads of a group, [n_rows, row_width_].
  void GatherRows(const KeyValueRows& rows, int64_t group);
  // The mean and covariance of one group without the angles, less what the settled means change.
  struct Moments {
    std::vector<double> mean;        // [width_]
    std::vector<double> covariance;  // [width_, width_]
  };
  Moments MomentsOf(const JointSums& sums, int64_t idx, const TurningMeans& means) const;

  StatisticsShape shape_;
  int64_t n_pairs_, half_;
  int64_t side_;       // channels of the keys of a group
  int64_t width_;      // of its keys and values
  int64_t row_width_;  // and of the angles
  int64_t n_groups_;   // of a layer
  JointAdder adder_;
  JointSums plain_, by_keys_, by_values_;
  std::vector<float> fisher_;  // [n_layers, n_groups, width_, width_], not yet divided
  std::vector<float> rows_, gradients_, weights_;
};

}  // namespace kvlathe
