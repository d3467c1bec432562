// Statistics of rows that were captured elsewhere (docs/basis.md, Calibration).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/accumulator.h"
#include "calibration/joint_moments.h"
#include "calibration/position_shift.h"
#include "model/config.h"
#include "model/rope.h"

namespace kvlathe {

// Rows of one layer for positions of one sequence that follow each other: queries [n_tokens,
// n_heads, head_dim], keys and values [n_tokens, n_kv_heads, head_dim], F32 and dense.
struct CapturedRows {
  int layer_idx = 0;
  int64_t n_tokens = 0;
  int first_position = 0;  // 0 begins a sequence
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  bool are_turned = true;  // queries and keys come after RoPE
};

// Gathers what calibration does of a model, but for gradients: what an error costs the model cannot
// be seen from its rows. Sequences are taken to stand all over the context, as calibration takes
// its own.
class RowCalibration {
 public:
  // `pool` outlives this.
  RowCalibration(const ModelConfig& config, ThreadPool* pool, Isa isa);

  // The layers of a piece come from 0 on. kInvalidArgument for rows out of that order, or where the
  // positions do not go on.
  Status Add(const CapturedRows& rows);
  // The statistics; call it once. kInvalidArgument where there are no rows behind the sinks,
  // kFailedPrecondition within a piece, kDataLoss naming a layer whose rows are not finite.
  StatusOr<CalibrationStatistics> Finish();

 private:
  Status CheckRows(const CapturedRows& rows) const;
  void BeginSequence();
  // Turns all rows of n_heads heads to their positions, or back from them.
  void Turn(const CapturedRows& rows, const float* from, int n_heads, std::vector<float>* to);

  ModelConfig config_;
  ThreadPool* pool_;
  LayerRopes ropes_;
  StatisticsAccumulator rows_;
  JointMomentSums joint_;
  std::vector<PositionShift> shifts_;  // of the sequence, by layer
  int next_layer_ = 0;
  int n_seen_ = 0;     // positions of the sequence that all layers have
  int64_t n_new_ = 0;  // of the piece
  int64_t n_sequences_ = 0;
  int64_t n_tokens_ = 0;
  int longest_ = 0;
  std::vector<float> q_, k_;  // turned, or turned back
};

}  // namespace kvlathe
