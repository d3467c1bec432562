// JointStatistics holds moments of the rows of several KV heads side by side: those that all text
// gives, and those that gradients give.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/layer_pass.h"
#include "calibration/joint_adder.h"
#include "calibration/key_value_moments.h"
#include "calibration/moment_sums.h"
#include "calibration/position_shift.h"
#include "calibration/turning_means.h"
#include "model/observer.h"

namespace kvlathe {

// Means and covariances of keys and values, of the text that is held back and of the rest.
// Costs width multiply-adds for each number of a row. Memory: for each layer, group of heads, part
// of the text and kind of rows an f64 matrix [width, width]. Moments are summed about the mean, by
// slices of kSliceRows. Where positions merge, the row of a position is the mean of its entry so
// far, and all of them count, for the entries of heads differ.
class JointMomentSums : public QkvObserver {
 public:
  // `pool` outlives this. n_pairs and half are those of TurningMeans.
  JointMomentSums(const StatisticsShape& shape, int n_pairs, int half, ThreadPool* pool);

  // What is seen from now on is of a sequence that is held back or not; keys after RoPE are turned
  // on by the shifts of their layers, [n_layers], which outlive their use; empty: none.
  void BeginSequence(std::span<const PositionShift> shifts, bool is_held_back);
  void Observe(const QkvView& view) override;
  // Shows the rows of what is not held back to `sums` too, which outlive this.
  void set_key_values(KeyValueSums* sums) { key_values_ = sums; }
  const TurningMeans& turning_means() const { return turning_means_; }
  // What keys in frames lose in the end, by the weighed sums of keys before RoPE.
  void SettleTurningMeans(const JointSums& keys_before_rope) {
    turning_means_.Settle(keys_before_rope);
  }
  // All that was summed up so far.
  void AppendTo(SumBytes* bytes);

  // Writes means and covariances, 0 where no row was seen, and releases the sums: call it once.
  void Finish(CalibrationStatistics* statistics);

 private:
  enum Kind { kKeys, kKeysInFrames, kKeysBeforeRope, kValues, kKinds };
  struct Part {
    JointSums of_kind[kKinds];
  };
  // Keys that lose a mean have the angles of their positions beside them.
  int64_t WidthOf(Kind kind) const {
    return kind == kKeys || kind == kKeysInFrames ? turning_means_.RowWidth() : width_;
  }

  StatisticsShape shape_;
  int64_t width_, n_groups_;
  std::span<const PositionShift> shifts_;
  bool is_held_back_ = false;
  Part parts_[2];  // calibration, held back
  TurningMeans turning_means_;
  std::vector<float> turned_, in_frames_;  // keys of a view, with angles
  KeyValueSums* key_values_ = nullptr;
  JointAdder adder_;
};

// Sums up F and the moments of rows that gradients weigh (JointMoments). F is about zero by
// definition: gradients have no mean to lose. Memory: as JointMomentSums.
class FisherSums {
 public:
  // `pool` outlives this. Keys in frames have n_pairs pairs of channels with turning means.
  FisherSums(const StatisticsShape& shape, int n_pairs, ThreadPool* pool);

  // Adds the gradients of one layer of a window, which is held back or not; those through all
  // queries where they are shown and it is not. Gradients of keys after
  // RoPE are turned on by the shift of the layer, as their rows are. `means` has seen the layer.
  void Add(const RowGradients& gradients, const PositionShift& shift, const TurningMeans& means,
           bool is_held_back);
  // Shows the gradients of what is not held back to `sums` too, which outlive this.
  void set_key_values(KeyValueSums* sums) { key_values_ = sums; }
  // Predicted tokens of what is not held back.
  int64_t n_tokens() const { return parts_[0].n_tokens[0]; }
  // A window with so many predicted tokens has been added.
  void CountTokens(int64_t n_tokens, bool is_held_back);
  // All that was summed up so far.
  void AppendTo(SumBytes* bytes);
  // Those of keys before RoPE that are not held back, as gradients weigh them.
  const JointSums& keys_before_rope() const { return parts_[0].k_pre.rows; }
  // Writes F and the weighed moments, with settled means, in place of what is in the statistics, of
  // the same shape, and releases the sums: call it once. kDataLoss naming the layer if gradients
  // were not finite.
  Status Finish(const TurningMeans& means, CalibrationStatistics* statistics);

 private:
  struct KindSums {
    JointSums rows;             // as gradients weigh them
    std::vector<float> fisher;  // [n_layers, n_groups, width, width], not yet divided
  };
  struct Part {
    KindSums k, k_block, k_pre, v;
    std::vector<int64_t> n_tokens = {0};
  };
  // Rows of n_tokens, row_width numbers for each group of heads.
  struct GroupRows {
    const float* rows;
    int64_t row_width;
    int64_t n_tokens;
  };
  // Gradients [n_tokens, n_kv_heads, head_dim] and their rows.
  void AddRows(const float* gradients, const GroupRows& rows, int layer_idx, KindSums* sums);
  Status FinishMoments(int64_t n_tokens, KindSums* sums, JointMoments* moments) const;

  StatisticsShape shape_;
  int64_t width_, n_groups_;
  // Adds gradients through some queries with respect to the rows that `of` has. `key_values` may be
  // null.
  struct Turns {
    const PositionShift& shift;
    const TurningMeans& means;
  };
  void AddThrough(const RowGradients::ThroughAll& gradients, const RowGradients& of,
                  const Turns& turns, KeyValueSums* key_values, Part* part);
  static constexpr int kThroughAll = 2;
  Part parts_[3];  // calibration, held back, calibration through all queries
  std::vector<float> turned_, turned_rows_, weights_;
  KeyValueSums* key_values_ = nullptr;
  JointAdder adder_;
};

}  // namespace kvlathe
