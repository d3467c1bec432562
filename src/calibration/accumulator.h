// An accumulator gathers calibration statistics from a running model, chunk by chunk.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/moment_sums.h"
#include "calibration/position_shift.h"
#include "model/observer.h"

namespace kvlathe {

// Cost per token and layer: head_dim^2 / 2 multiply-adds for each of 2 n_heads + 3 n_kv_heads rows.
// Memory: one [head_dim, head_dim] f64 matrix per head and kind, independent of the token count.
// Across heads: (n_kv_heads head_dim)^2 multiply-adds, and as many f64 numbers twice a layer.
// Moments are summed about the mean, as MomentAdder does.
class StatisticsAccumulator : public QkvObserver {
 public:
  // `pool` runs the products between the model's own jobs and outlives the accumulator.
  // `across_heads`: statistics also across the KV heads of a layer.
  StatisticsAccumulator(const StatisticsShape& shape, ThreadPool* pool, Isa isa,
                        bool across_heads = false);

  // Queries and keys after RoPE that are seen from now on are turned on by the shift of their
  // layer, [n_layers], which outlives its use; those of the first kCalibrationSinks positions,
  // which are never elsewhere, are not.
  void SetShifts(std::span<const PositionShift> shifts) { shifts_ = shifts; }

  // Rows at the first kCalibrationSinks positions go to the sink moments only. Of keys and values
  // that merge, those count that stay in the cache; there is nothing across heads then, whose
  // entries differ.
  void Observe(const QkvView& view) override;

  // kDataLoss once a layer has shown values that are not finite ("layer 3: keys are not finite; the
  // weights are damaged"); later observations are ignored.
  Status status() const;

  // All that was summed up so far.
  void AppendTo(SumBytes* bytes);

  // The statistics, with `source` and what others gather left to the caller. kInvalidArgument if no
  // token was counted. Releases the sums: call it once.
  StatusOr<CalibrationStatistics> Finish();

 private:
  enum Kind {
    kQueries,
    kKeys,
    kKeysBeforeRope,
    kValues,
    kQueriesBeforeRope,
    kKeysAcrossHeads,  // before RoPE
    kValuesAcrossHeads,
    kKinds
  };
  struct Sums {
    int width = 0;                // of a row: head_dim, or that of all KV heads
    std::vector<double> n_rows;   // [n_layers, heads]
    std::vector<double> mean;     // [n_layers, heads, width]
    std::vector<double> scatter;  // [n_layers, heads, width, width], lower triangle

    void AppendTo(SumBytes* bytes) {
      for (std::vector<double>* sums : {&n_rows, &mean, &scatter}) AppendSums(sums, bytes);
    }
  };
  struct Task {  // one head of one kind
    Kind kind;
    int head_idx;  // KV head, or query head for kQueriesBeforeRope; 0 across heads
  };
  struct Scratch {  // of a worker
    explicit Scratch(Isa isa) : adder(isa) {}
    std::vector<float> rows;
    MomentAdder adder;
  };

  // Heads that are told apart, and the width of their rows.
  int HeadsOf(Kind kind) const;
  int WidthOf(Kind kind) const;
  Sums MakeSums(Kind kind) const;
  void RunTask(const Task& task, const QkvView& view, Scratch* scratch);
  // Copies the task's rows of tokens [begin, end) into scratch; returns the number of rows.
  int64_t GatherRows(const Task& task, const QkvView& view, Range tokens, Scratch* scratch) const;
  // False where a value or its square is not finite.
  static bool AddRows(int64_t n_rows, int64_t head_idx, Sums* sums, Scratch* scratch);
  Sums* SinkSums(Kind kind);
  ChannelHistograms* HistogramsOf(Kind kind);
  // `rows_per_token`: the covariance is summed over so many rows, not averaged.
  static HeadMoments Normalise(Sums* sums, int rows_per_token);
  void RecordFailure(int layer_idx, Kind kind);

  StatisticsShape shape_;
  ThreadPool* pool_;
  std::span<const PositionShift> shifts_;  // empty: none
  std::vector<Task> tasks_;
  std::vector<Scratch> scratch_;    // [n_workers]
  std::vector<Range> body_ranges_;  // tokens of the view that are not sinks, in slices
  std::vector<Range> sink_ranges_;
  Sums sums_[kKinds];
  Sums sink_q_post_, sink_k_post_, sink_v_;
  ChannelHistograms k_post_histograms_, k_pre_histograms_, v_histograms_;
  std::vector<int64_t> n_rows_;       // tokens, [n_layers]
  std::vector<int64_t> n_sink_rows_;  // [n_layers]
  std::atomic<int> failure_{-1};      // layer_idx * kKinds + kind
};

}  // namespace kvlathe
