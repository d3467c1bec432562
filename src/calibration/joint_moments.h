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
#include "calibration/position_shift.h"
#include "model/observer.h"

namespace kvlathe {

// Means and Gram matrices of keys and values, of the text that is held back and of the rest.
// Costs width multiply-adds for each number of a row. Memory: for each layer, group of heads, part
// of the text and kind of rows an f64 matrix [width, width]. Products are summed in f32 within a
// chunk of the forward and in f64 across chunks. Where positions merge, the row of a position is
// the mean of its entry so far, and all of them count, for the entries of heads differ.
class JointMomentSums : public QkvObserver {
 public:
  // `pool` outlives this.
  JointMomentSums(const StatisticsShape& shape, ThreadPool* pool);

  // What is seen from now on is of a sequence that is held back or not; keys after RoPE are turned
  // on by the shifts of their layers, [n_layers], which outlive their use; empty: none.
  void BeginSequence(std::span<const PositionShift> shifts, bool is_held_back);
  void Observe(const QkvView& view) override;

  // Writes means and Gram matrices, 0 where no row was seen, and releases the sums: call it once.
  void Finish(CalibrationStatistics* statistics);

 private:
  enum Kind { kKeys, kKeysBeforeRope, kValues, kKinds };
  struct Sums {
    std::vector<double> sum;   // [n_layers, n_groups, width]
    std::vector<double> gram;  // [n_layers, n_groups, width, width]
  };
  struct Part {
    Sums of_kind[kKinds];
    int64_t n_rows = 0;  // of each layer
  };

  // Adds the rows of one group of heads; `first_row` is that of the group's first head.
  void AddRows(const float* first_row, int64_t n_rows, int64_t group_idx, Sums* sums);
  void Normalise(Sums* sums, int64_t n_rows, JointMoments* moments) const;

  StatisticsShape shape_;
  ThreadPool* pool_;
  int64_t width_, n_groups_;
  std::span<const PositionShift> shifts_;
  bool is_held_back_ = false;
  Part parts_[2];                             // calibration, held back
  std::vector<float> turned_;                 // keys of a view
  std::vector<std::vector<float>> products_;  // of the workers
};

// Sums up F and the moments of rows that gradients weigh (JointMoments), in place of what is in the
// statistics.
class FisherSums {
 public:
  // `pool` and `statistics`, whose arrays have their sizes and are 0, outlive this.
  FisherSums(ThreadPool* pool, CalibrationStatistics* statistics)
      : pool_(pool), statistics_(statistics) {}

  // Adds the gradients of one layer of a window, which is held back or not. Gradients of keys after
  // RoPE are turned on by the shift of the layer, as their rows are.
  void Add(const RowGradients& gradients, const PositionShift& shift, bool is_held_back);
  // A window with so many predicted tokens has been added.
  void CountTokens(int64_t n_tokens, bool is_held_back);
  // Makes F of the sums. kDataLoss naming the layer if gradients were not finite.
  Status Finish();

 private:
  JointStatistics& PartOf(bool is_held_back) const {
    return is_held_back ? statistics_->held_back : statistics_->joint;
  }
  // Gradients and their rows, [n_tokens, n_kv_heads, head_dim].
  void AddRows(const float* gradients, const float* rows, int64_t n_tokens, int layer_idx,
               JointMoments* moments);

  ThreadPool* pool_;
  CalibrationStatistics* statistics_;
  std::vector<float> turned_, turned_rows_, weighed_;
};

}  // namespace kvlathe
