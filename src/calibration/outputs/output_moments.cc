#include "calibration/outputs/output_moments.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

OutputMoments::OutputMoments(const StatisticsShape& shape, ThreadPool* pool, Isa isa)
    : shape_(shape),
      pool_(pool),
      scratch_(pool->n_workers(), Scratch(isa)),
      sums_(MakeJointSums(int64_t{shape.n_layers} * shape.n_kv_heads, shape.head_dim)) {}

void OutputMoments::Observe(const OutputsView& view) {
  const int64_t d = shape_.head_dim, group_width = shape_.gqa_group() * d;
  std::atomic<int> next_head{0};
  pool_->Run([&](int worker_id) {
    Scratch& scratch = scratch_[worker_id];
    for (int g = next_head++; g < shape_.n_kv_heads; g = next_head++) {
      scratch.rows.clear();
      for (int64_t t = 0; t < view.n_tokens; ++t) {
        if (view.positions[t] < kCalibrationSinks) continue;
        // The heads of a group lie side by side.
        const float* const rows = view.outputs + (t * shape_.n_kv_heads + g) * group_width;
        scratch.rows.insert(scratch.rows.end(), rows, rows + group_width);
      }
      const int64_t head = int64_t{view.layer_idx} * shape_.n_kv_heads + g;
      const MomentSums to = {&sums_.weight[head], &sums_.mean[head * d],
                             &sums_.scatter[head * d * d]};
      const double squares =
          scratch.adder.Add(scratch.rows.data(), std::ssize(scratch.rows) / d, d, to);
      if (!std::isfinite(squares)) bad_layer_ = view.layer_idx;
    }
  });
}

Status OutputMoments::Finish(CalibrationStatistics* statistics) const {
  if (bad_layer_ >= 0) {
    return Error(StatusCode::kDataLoss,
                 "layer {}: outputs of attention are not finite; the weights are damaged",
                 bad_layer_.load());
  }
  const int64_t d = shape_.head_dim;
  HeadMoments& outputs = statistics->outputs;
  outputs.mean.assign(sums_.mean.begin(), sums_.mean.end());
  outputs.covariance.resize(sums_.scatter.size());
  for (int64_t h = 0; h < std::ssize(sums_.weight); ++h) {
    const double scale = sums_.weight[h] > 0 ? shape_.gqa_group() / sums_.weight[h] : 0.0;
    ToCovariance(&sums_.scatter[h * d * d], scale, d, &outputs.covariance[h * d * d]);
  }
  return OkStatus();
}

}  // namespace kvlathe
