// Statistics of rows that were captured elsewhere (docs/basis.md, Calibration).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  bool are_turned = true;     // queries and keys come after RoPE
  bool is_held_back = false;  // of the sequence that begins: JointStatistics tells the two apart
};

// Gradients with respect to the keys and values of one layer, all [n_tokens, n_kv_heads, head_dim],
// of what the model predicts for a whole sequence (docs/basis.md, Gradients).
struct CapturedGradients {
  int layer_idx = 0;
  int64_t n_tokens = 0;
  const float *k = nullptr, *v = nullptr;  // the rows again
  // Through the queries that are kCalibrationNewest positions or more behind a row.
  const float *to_k = nullptr, *to_v = nullptr;
  const float *to_k_through_all = nullptr, *to_v_through_all = nullptr;  // through all queries
  bool are_turned = true;  // keys, and the gradients to them
};

// Gathers what calibration does of a model; what an error costs the model cannot be seen from its
// rows, so gradients are shown beside them, or left out. Sequences are taken to stand all over the
// context, as calibration takes its own.
class RowCalibration {
 public:
  // `pool` outlives this.
  RowCalibration(const ModelConfig& config, ThreadPool* pool, Isa isa);

  // The layers of a piece come from 0 on. kInvalidArgument for rows out of that order, or where the
  // positions do not go on.
  Status Add(const CapturedRows& rows);
  // Each layer once for every sequence, in any order, behind all rows of it. kInvalidArgument where
  // they are not those of the sequence.
  Status AddGradients(const CapturedGradients& gradients);
  // The statistics; call it once. kInvalidArgument where there are no rows behind the sinks,
  // kFailedPrecondition within a piece, or where gradients of some sequences alone are there,
  // kDataLoss naming a layer whose rows are not finite.
  StatusOr<CalibrationStatistics> Finish();

 private:
  Status CheckRows(const CapturedRows& rows) const;
  Status CheckGradients(const CapturedGradients& gradients) const;
  void BeginSequence(bool is_held_back);
  // Turns rows [n_tokens, n_heads, head_dim] from a position on, forwards or back, times `scale`.
  struct Turning {
    int layer_idx;
    int64_t n_tokens;
    int first_position;
    bool is_back;
    float scale;
  };
  void Turn(const Turning& turning, const float* from, int n_heads, std::vector<float>* to);
  // What undoes RoPE where it stretches.
  float WayBack(int layer_idx) const;

  ModelConfig config_;
  ThreadPool* pool_;
  LayerRopes ropes_;
  StatisticsAccumulator rows_;
  JointMomentSums joint_;
  std::optional<FisherSums> fisher_;   // once there are gradients
  std::vector<PositionShift> shifts_;  // of the sequence, by layer
  int next_layer_ = 0;
  int n_seen_ = 0;     // positions of the sequence that all layers have
  int64_t n_new_ = 0;  // of the piece
  int64_t n_sequences_ = 0;
  int64_t n_tokens_ = 0;
  int longest_ = 0;
  bool is_held_back_ = false;
  std::vector<bool> has_gradients_;  // of the sequence, by layer
  int64_t n_gradients_ = 0;          // layers of sequences
  std::vector<float> q_, k_;         // turned, or turned back
  std::vector<float> to_k_, to_k_through_all_;
};

}  // namespace kvlathe
