#include "calibration/joint_moments.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/linear/dense_product.h"

namespace kvlathe {
namespace {

constexpr int64_t kColumnStep = 16;  // of what a worker takes of a matrix

// c [width, columns.end - columns.begin], which is c_stride wide, = X^T X of some columns, or added
// to it. X [n_rows, width], its rows x_stride apart.
void MultiplyColumns(const float* x, int64_t n_rows, int64_t x_stride, int64_t width, Range columns,
                     bool accumulate, float* c, int64_t c_stride) {
  Multiply({.n_rows = width,
            .n_columns = columns.end - columns.begin,
            .n_inner = n_rows,
            .a = x,
            .a_stride = x_stride,
            .is_a_transposed = true,
            .b = x + columns.begin,
            .b_stride = x_stride,
            .c = c,
            .c_stride = c_stride,
            .accumulate = accumulate});
}

}  // namespace

JointMomentSums::JointMomentSums(const StatisticsShape& shape, ThreadPool* pool)
    : shape_(shape),
      pool_(pool),
      width_(int64_t{JointHeads(shape)} * shape.head_dim),
      n_groups_(shape.n_kv_heads / JointHeads(shape)),
      products_(pool->n_workers()) {
  for (Part& part : parts_) {
    for (Sums& sums : part.of_kind) {
      sums.sum.resize(shape.n_layers * n_groups_ * width_);
      sums.gram.resize(sums.sum.size() * width_);
    }
  }
}

void JointMomentSums::BeginSequence(std::span<const PositionShift> shifts, bool is_held_back) {
  shifts_ = shifts;
  is_held_back_ = is_held_back;
}

void JointMomentSums::Observe(const QkvView& view) {
  const int64_t stride = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  int64_t n_sinks = 0;
  while (n_sinks < view.n_tokens && view.positions[n_sinks] < kCalibrationSinks) ++n_sinks;
  const int64_t n_rows = view.n_tokens - n_sinks;
  if (n_rows == 0) return;
  const float* k_post = view.k_post + n_sinks * stride;
  if (!shifts_.empty()) {
    turned_.assign(k_post, k_post + n_rows * stride);
    shifts_[view.layer_idx].Apply(n_rows * shape_.n_kv_heads, shape_.head_dim, turned_.data());
    k_post = turned_.data();
  }
  Part& part = parts_[is_held_back_ ? 1 : 0];
  if (view.layer_idx == 0) part.n_rows += n_rows;
  const std::pair<Kind, const float*> kinds[] = {{kKeys, k_post},
                                                 {kKeysBeforeRope, view.k_pre + n_sinks * stride},
                                                 {kValues, view.v + n_sinks * stride}};
  for (const auto& [kind, rows] : kinds) {
    for (int64_t group = 0; group < n_groups_; ++group) {
      AddRows(rows + group * width_, n_rows, view.layer_idx * n_groups_ + group,
              &part.of_kind[kind]);
    }
  }
}

void JointMomentSums::AddRows(const float* first_row, int64_t n_rows, int64_t group_idx,
                              Sums* sums) {
  const int64_t stride = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  double* const sum = &sums->sum[group_idx * width_];
  double* const gram = &sums->gram[group_idx * width_ * width_];
  pool_->Run([&](int worker_id) {
    const Range columns = ShareOf(width_, kColumnStep, worker_id, pool_->n_workers());
    const int64_t n = columns.end - columns.begin;
    if (n == 0) return;
    std::vector<float>& product = products_[worker_id];
    product.resize(width_ * n);
    MultiplyColumns(first_row, n_rows, stride, width_, columns, false, product.data(), n);
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t j = 0; j < n; ++j) gram[i * width_ + columns.begin + j] += product[i * n + j];
    }
    for (int64_t t = 0; t < n_rows; ++t) {
      for (int64_t j = columns.begin; j < columns.end; ++j) sum[j] += first_row[t * stride + j];
    }
  });
}

void JointMomentSums::Normalise(Sums* sums, int64_t n_rows, JointMoments* moments) const {
  const double scale = n_rows > 0 ? 1 / static_cast<double>(n_rows) : 0;
  for (size_t i = 0; i < sums->sum.size(); ++i) {
    moments->mean[i] = static_cast<float>(scale * sums->sum[i]);
  }
  for (int64_t m = 0; m < shape_.n_layers * n_groups_; ++m) {
    const int64_t first = m * width_ * width_;
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const auto x = static_cast<float>(scale * sums->gram[first + i * width_ + j]);
        moments->gram[first + i * width_ + j] = moments->gram[first + j * width_ + i] = x;
      }
    }
  }
  *sums = {};  // halves the peak memory of Finish
}

void JointMomentSums::Finish(CalibrationStatistics* statistics) {
  const std::pair<Part*, JointStatistics*> parts[] = {{&parts_[0], &statistics->joint},
                                                      {&parts_[1], &statistics->held_back}};
  for (const auto& [part, to] : parts) {
    Normalise(&part->of_kind[kKeys], part->n_rows, &to->k);
    Normalise(&part->of_kind[kKeysBeforeRope], part->n_rows, &to->k_pre);
    Normalise(&part->of_kind[kValues], part->n_rows, &to->v);
  }
}

void FisherSums::Add(const RowGradients& gradients, const PositionShift& shift, bool is_held_back) {
  const StatisticsShape& shape = statistics_->shape;
  const int64_t n_rows = gradients.n_tokens * shape.n_kv_heads;
  turned_.assign(gradients.k_post, gradients.k_post + n_rows * shape.head_dim);
  shift.Apply(n_rows, shape.head_dim, turned_.data());
  JointStatistics& part = PartOf(is_held_back);
  AddRows(turned_.data(), gradients.n_tokens, gradients.layer_idx, &part.k.fisher);
  AddRows(gradients.k_pre, gradients.n_tokens, gradients.layer_idx, &part.k_pre.fisher);
  AddRows(gradients.v, gradients.n_tokens, gradients.layer_idx, &part.v.fisher);
}

void FisherSums::AddRows(const float* rows, int64_t n_tokens, int layer_idx,
                         std::vector<float>* fisher) {
  const StatisticsShape& shape = statistics_->shape;
  const int64_t width = int64_t{JointHeads(shape)} * shape.head_dim;
  const int64_t stride = int64_t{shape.n_kv_heads} * shape.head_dim, n_groups = stride / width;
  if (n_tokens <= kCalibrationSinks) return;
  rows += kCalibrationSinks * stride;
  for (int64_t group = 0; group < n_groups; ++group) {
    float* const to = fisher->data() + (layer_idx * n_groups + group) * width * width;
    pool_->Run([&](int worker_id) {
      const Range columns = ShareOf(width, kColumnStep, worker_id, pool_->n_workers());
      if (columns.begin == columns.end) return;
      MultiplyColumns(rows + group * width, n_tokens - kCalibrationSinks, stride, width, columns,
                      true, to + columns.begin, width);
    });
  }
}

void FisherSums::CountTokens(int64_t n_tokens, bool is_held_back) {
  PartOf(is_held_back).n_tokens += n_tokens;
}

Status FisherSums::Finish() {
  const StatisticsShape& shape = statistics_->shape;
  const int64_t width = int64_t{JointHeads(shape)} * shape.head_dim;
  for (JointStatistics* part : {&statistics_->joint, &statistics_->held_back}) {
    if (part->n_tokens == 0) continue;
    const auto scale = static_cast<float>(0.5 / static_cast<double>(part->n_tokens));
    for (std::vector<float>* fisher : {&part->k.fisher, &part->k_pre.fisher, &part->v.fisher}) {
      const int64_t n_matrices = std::ssize(*fisher) / (width * width);
      for (int64_t m = 0; m < n_matrices; ++m) {
        float* const f = fisher->data() + m * width * width;
        for (int64_t i = 0; i < width; ++i) {
          for (int64_t j = 0; j <= i; ++j) {
            const float x = scale * f[i * width + j];
            if (!std::isfinite(x)) {
              return Error(StatusCode::kDataLoss,
                           "layer {}: gradients are not finite; the weights are damaged",
                           m * shape.n_layers / n_matrices);
            }
            f[i * width + j] = f[j * width + i] = x;
          }
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace kvlathe
