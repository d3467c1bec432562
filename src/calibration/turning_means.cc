#include "calibration/turning_means.h"

#include <algorithm>
#include <utility>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// Rows of numbers, row_stride apart.
struct Rows {
  const double* first;
  int64_t row_stride;
  int64_t n_columns;
};

// to [n_rows, b.n_columns] += factor m b, where m is [n_rows, n_inner]. M has two numbers a row
// that are not 0, and they alone cost time.
void AddProduct(double factor, std::span<const double> m, int64_t n_inner, const Rows& b,
                double* to) {
  for (int64_t i = 0; i < std::ssize(m); ++i) {
    if (m[i] == 0) continue;
    const double* const row = b.first + i % n_inner * b.row_stride;
    double* const sum = to + i / n_inner * b.n_columns;
    for (int64_t j = 0; j < b.n_columns; ++j) sum[j] += factor * m[i] * row[j];
  }
}

}  // namespace

TurningMeans::TurningMeans(const StatisticsShape& shape, int n_pairs, int half)
    : shape_(shape),
      n_pairs_(n_pairs),
      half_(half),
      width_(int64_t{JointHeads(shape)} * shape.head_dim),
      n_groups_(shape.n_kv_heads / JointHeads(shape)),
      first_(int64_t{shape.n_layers} * shape.n_kv_heads * shape.head_dim),
      settled_(first_),
      n_rows_(shape.n_layers) {}

void TurningMeans::See(int layer_idx, const float* k_pre, int64_t n_rows) {
  if (n_rows_[layer_idx] > 0 || n_rows == 0) return;
  n_rows_[layer_idx] = n_rows;
  const int64_t d = shape_.head_dim, width = shape_.n_kv_heads * d;
  for (int64_t i = 0; i < width; ++i) {
    if (!Turns(i % d)) continue;
    double sum = 0;
    for (int64_t t = 0; t < n_rows; ++t) sum += k_pre[t * width + i];
    const auto mean = static_cast<float>(sum / static_cast<double>(n_rows));
    first_[layer_idx * width + i] = settled_[layer_idx * width + i] = ToFloat(ToBf16(mean));
  }
}

const float* TurningMeans::of(int layer_idx) const {
  return &first_[int64_t{layer_idx} * shape_.n_kv_heads * shape_.head_dim];
}

int64_t TurningMeans::RowWidth() const { return width_ + int64_t{2} * n_pairs_; }

void TurningMeans::PutAngles(const Keys& keys, PositionShift::Frames frames,
                             const std::vector<float>& turned, std::vector<float>* rows) const {
  const int64_t n_rows = std::ssize(keys.positions), stride = n_groups_ * width_;
  const int64_t row_width = RowWidth();
  std::vector<float> angles(n_rows * 2 * n_pairs_);
  keys.shift.WriteAngles(frames, keys.positions, n_pairs_, angles.data());
  rows->resize(n_rows * n_groups_ * row_width);
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t group = 0; group < n_groups_; ++group) {
      float* const to = rows->data() + (t * n_groups_ + group) * row_width;
      std::copy_n(turned.data() + t * stride + group * width_, width_, to);
      std::copy_n(angles.data() + t * 2 * n_pairs_, 2 * n_pairs_, to + width_);
    }
  }
}

void TurningMeans::FrameRowsWithAngles(const Keys& keys, const float* k_pre,
                                       std::vector<float>* rows) const {
  std::vector<float> turned(std::ssize(keys.positions) * n_groups_ * width_);
  keys.shift.TurnInFrames(
      {keys.positions, shape_.n_kv_heads, shape_.head_dim, k_pre, of(keys.layer_idx)},
      turned.data());
  PutAngles(keys, PositionShift::Frames::kOfSlowPairs, turned, rows);
}

void TurningMeans::RowsWithAngles(const Keys& keys, const float* k_post,
                                  std::vector<float>* rows) const {
  const int64_t n_rows = std::ssize(keys.positions), stride = n_groups_ * width_;
  std::vector<float> turned(k_post, k_post + n_rows * stride);
  keys.shift.Apply(n_rows * shape_.n_kv_heads, shape_.head_dim, turned.data());
  PutAngles(keys, PositionShift::Frames::kNone, turned, rows);
  const float* const means = of(keys.layer_idx);
  for (int64_t t = 0; t < n_rows * n_groups_; ++t) {
    float* const row = rows->data() + t * RowWidth();
    const float *const cos = row + width_, *const sin = cos + n_pairs_;
    const float* const of_group = means + t % n_groups_ * width_;
    for (int64_t head = 0; head < width_; head += shape_.head_dim) {
      for (int64_t i = 0; i < n_pairs_; ++i) {
        const float a = of_group[head + i], b = of_group[head + i + half_];
        row[head + i] -= a * cos[i] - b * sin[i];
        row[head + i + half_] -= b * cos[i] + a * sin[i];
      }
    }
  }
}

void TurningMeans::Settle(const JointSums& keys_before_rope) {
  for (int64_t m = 0; m < std::ssize(keys_before_rope.weight); ++m) {
    if (keys_before_rope.weight[m] == 0) continue;
    for (int64_t i = 0; i < width_; ++i) {
      if (!Turns(i % shape_.head_dim)) continue;
      const auto mean = static_cast<float>(keys_before_rope.mean[m * width_ + i]);
      settled_[m * width_ + i] = ToFloat(ToBf16(mean));
    }
  }
}

std::vector<double> TurningMeans::MeansByAngles(int64_t layer_idx, int64_t group,
                                                const std::vector<double>& means) const {
  const int64_t first = (layer_idx * n_groups_ + group) * width_, n_angles = int64_t{2} * n_pairs_;
  std::vector<double> m(width_ * n_angles);
  for (int64_t head = 0; head < width_; head += shape_.head_dim) {
    for (int64_t i = 0; i < n_pairs_; ++i) {
      const double a = means[first + head + i], b = means[first + head + i + half_];
      double* const of_a = &m[(head + i) * n_angles];
      double* const of_b = &m[(head + i + half_) * n_angles];
      of_a[i] = of_b[n_pairs_ + i] = a;
      of_a[n_pairs_ + i] = -b;
      of_b[i] = b;
    }
  }
  return m;
}

// With x' = x - M f, whose f are the angles: S' = S_xx - M S_fx - S_xf M^T + M S_ff M^T.
JointSums TurningMeans::LessMeans(const JointSums& rows_with_angles,
                                  const std::vector<float>& means) const {
  if (n_pairs_ == 0) return rows_with_angles;
  const int64_t n_matrices = std::ssize(rows_with_angles.weight), wide = RowWidth(),
                n_angles = int64_t{2} * n_pairs_;
  std::vector<double> change(means.begin(), means.end());
  for (size_t i = 0; i < change.size(); ++i) change[i] -= first_[i];
  JointSums settled;
  settled.weight = rows_with_angles.weight;
  settled.mean.resize(n_matrices * width_);
  settled.scatter.resize(n_matrices * width_ * width_);
  for (int64_t idx = 0; idx < n_matrices; ++idx) {
    const std::vector<double> m = MeansByAngles(idx / n_groups_, idx % n_groups_, change);
    const double* const from_mean = &rows_with_angles.mean[idx * wide];
    const double* const from = &rows_with_angles.scatter[idx * wide * wide];
    double* const mean = &settled.mean[idx * width_];
    double* const to = &settled.scatter[idx * width_ * width_];
    std::copy_n(from_mean, width_, mean);
    AddProduct(-1, m, n_angles, {from_mean + width_, 1, 1}, mean);
    for (int64_t i = 0; i < width_; ++i) std::copy_n(from + i * wide, width_, to + i * width_);
    // half = S_fx - S_ff M^T / 2, so that both products with M hold half of the last term.
    std::vector<double> half(n_angles * width_);
    for (int64_t p = 0; p < n_angles; ++p) {
      std::copy_n(from + (width_ + p) * wide, width_, &half[p * width_]);
    }
    std::vector<double> of_angles(width_ * n_angles);  // M S_ff
    AddProduct(1, m, n_angles, {from + width_ * wide + width_, wide, n_angles}, of_angles.data());
    for (int64_t p = 0; p < n_angles; ++p) {
      for (int64_t i = 0; i < width_; ++i) half[p * width_ + i] -= of_angles[i * n_angles + p] / 2;
    }
    std::vector<double> taken(width_ * width_);  // M half; its transpose is taken off too
    AddProduct(1, m, n_angles, {half.data(), width_, width_}, taken.data());
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t j = 0; j < width_; ++j) {
        to[i * width_ + j] -= taken[i * width_ + j] + taken[j * width_ + i];
      }
    }
  }
  return settled;
}

void TurningMeans::AppendTo(SumBytes* bytes) {
  AppendSums(&first_, bytes);
  AppendSums(&settled_, bytes);
  AppendSums(&n_rows_, bytes);
}

}  // namespace kvlathe
