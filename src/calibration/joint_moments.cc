#include "calibration/joint_moments.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cpu/kernels/linear/dense_product.h"

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
  const int64_t n_rows = gradients.n_tokens * shape.n_kv_heads, n = n_rows * shape.head_dim;
  turned_.assign(gradients.k_post, gradients.k_post + n);
  turned_rows_.assign(gradients.k_post_rows, gradients.k_post_rows + n);
  for (std::vector<float>* rows : {&turned_, &turned_rows_}) {
    shift.Apply(n_rows, shape.head_dim, rows->data());
  }
  JointStatistics& part = PartOf(is_held_back);
  const int64_t n_tokens = gradients.n_tokens;
  const int layer_idx = gradients.layer_idx;
  AddRows(turned_.data(), turned_rows_.data(), n_tokens, layer_idx, &part.k);
  AddRows(gradients.k_pre, gradients.k_pre_rows, n_tokens, layer_idx, &part.k_pre);
  AddRows(gradients.v, gradients.v_rows, n_tokens, layer_idx, &part.v);
}

void FisherSums::AddRows(const float* gradients, const float* rows, int64_t n_tokens, int layer_idx,
                         JointMoments* moments) {
  const StatisticsShape& shape = statistics_->shape;
  const int64_t width = int64_t{JointHeads(shape)} * shape.head_dim;
  const int64_t stride = int64_t{shape.n_kv_heads} * shape.head_dim, n_groups = stride / width;
  const int64_t n = n_tokens - kCalibrationSinks;
  if (n <= 0) return;
  gradients += kCalibrationSinks * stride;
  rows += kCalibrationSinks * stride;
  weighed_.resize(n * width);
  for (int64_t group = 0; group < n_groups; ++group) {
    const int64_t at = layer_idx * n_groups + group;
    float* const mean = moments->weighed_mean.data() + at * width;
    for (int64_t t = 0; t < n; ++t) {
      const float* const g = gradients + t * stride + group * width;
      const float* const row = rows + t * stride + group * width;
      const float weight = std::inner_product(g, g + width, g, 0.0f), root = std::sqrt(weight);
      for (int64_t i = 0; i < width; ++i) {
        mean[i] += weight * row[i];
        weighed_[t * width + i] = root * row[i];
      }
    }
    pool_->Run([&](int worker_id) {
      const Range columns = ShareOf(width, kColumnStep, worker_id, pool_->n_workers());
      if (columns.begin == columns.end) return;
      const int64_t first = at * width * width + columns.begin;
      MultiplyColumns(gradients + group * width, n, stride, width, columns, true,
                      moments->fisher.data() + first, width);
      MultiplyColumns(weighed_.data(), n, width, width, columns, true,
                      moments->weighed_gram.data() + first, width);
    });
  }
}

void FisherSums::CountTokens(int64_t n_tokens, bool is_held_back) {
  PartOf(is_held_back).n_tokens += n_tokens;
}

namespace {

// The lower triangle of a matrix times `scale`, above it too. False if a number is not finite.
bool MirrorScaled(float scale, int64_t width, float* m) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const float x = scale * m[i * width + j];
      if (!std::isfinite(x)) return false;
      m[i * width + j] = m[j * width + i] = x;
    }
  }
  return true;
}

}  // namespace

Status FisherSums::Finish() {
  const StatisticsShape& shape = statistics_->shape;
  const int64_t width = int64_t{JointHeads(shape)} * shape.head_dim;
  for (JointStatistics* part : {&statistics_->joint, &statistics_->held_back}) {
    if (part->n_tokens == 0) continue;
    const auto scale = static_cast<float>(0.5 / static_cast<double>(part->n_tokens));
    for (JointMoments* moments : {&part->k, &part->k_pre, &part->v}) {
      const int64_t n_matrices = std::ssize(moments->fisher) / (width * width);
      for (int64_t m = 0; m < n_matrices; ++m) {
        float* const f = moments->fisher.data() + m * width * width;
        double weights = 0;
        for (int64_t i = 0; i < width; ++i) weights += f[i * (width + 1)];
        const auto per_weight = static_cast<float>(weights > 0 ? 1 / weights : 0);
        for (int64_t i = 0; i < width; ++i) moments->weighed_mean[m * width + i] *= per_weight;
        if (!MirrorScaled(scale, width, f) ||
            !MirrorScaled(per_weight, width, moments->weighed_gram.data() + m * width * width)) {
          return Error(StatusCode::kDataLoss,
                       "layer {}: gradients are not finite; the weights are damaged",
                       m * shape.n_layers / n_matrices);
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace kvlathe
