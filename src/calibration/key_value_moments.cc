#include "calibration/key_value_moments.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvlathe {
namespace {

void AppendFloats(const std::vector<double>& from, std::vector<float>* to) {
  for (const double x : from) to->push_back(static_cast<float>(x));
}

bool AreFinite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double x) { return std::isfinite(x); });
}

}  // namespace

KeyValueSums::KeyValueSums(const StatisticsShape& shape, int n_pairs, int half, ThreadPool* pool)
    : shape_(shape),
      n_pairs_(n_pairs),
      half_(half),
      side_(int64_t{KeyValueHeads(shape)} * shape.head_dim),
      width_(2 * side_),
      row_width_(width_ + 2 * n_pairs_),
      n_groups_(shape.n_kv_heads / KeyValueHeads(shape)),
      adder_(pool) {
  const int64_t n_matrices = shape.n_layers * n_groups_;
  for (JointSums* sums : {&plain_, &by_keys_, &by_values_}) {
    *sums = MakeJointSums(n_matrices, row_width_);
  }
  fisher_.resize(n_matrices * width_ * width_);
}

void KeyValueSums::GatherRows(const KeyValueRows& rows, int64_t group) {
  const int64_t n_channels = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  const int64_t joint = int64_t{JointHeads(shape_)} * shape_.head_dim, n_angles = 2 * n_pairs_;
  const int64_t first = group * side_, wide = joint + n_angles;
  const int64_t stride = n_channels / joint * wide;
  rows_.resize(rows.n_rows * row_width_);
  for (int64_t t = 0; t < rows.n_rows; ++t) {
    const float* const of_joint = rows.keys_with_angles + t * stride + first / joint * wide;
    float* const to = rows_.data() + t * row_width_;
    std::copy_n(of_joint + first % joint, side_, to);
    std::copy_n(rows.values + t * n_channels + first, side_, to + side_);
    std::copy_n(of_joint + joint, n_angles, to + width_);
  }
}

void KeyValueSums::AddRows(const KeyValueRows& rows) {
  for (int64_t group = 0; group < n_groups_; ++group) {
    GatherRows(rows, group);
    adder_.Add(rows_.data(), rows.n_rows, row_width_, nullptr, row_width_,
               rows.layer_idx * n_groups_ + group, &plain_);
  }
}

void KeyValueSums::AddGradients(const KeyValueRows& rows) {
  const int64_t n_channels = int64_t{shape_.n_kv_heads} * shape_.head_dim, n = rows.n_rows;
  if (n <= 0) return;
  gradients_.resize(n * width_);
  weights_.resize(n);
  for (int64_t group = 0; group < n_groups_; ++group) {
    GatherRows(rows, group);
    const int64_t idx = rows.layer_idx * n_groups_ + group;
    const std::pair<const float*, JointSums*> sides[] = {{rows.key_gradients, &by_keys_},
                                                         {rows.value_gradients, &by_values_}};
    int64_t place = 0;
    for (const auto& [gradients, sums] : sides) {
      for (int64_t t = 0; t < n; ++t) {
        const float* const g = gradients + t * n_channels + group * side_;
        std::copy_n(g, side_, &gradients_[t * width_ + place]);
        weights_[t] = std::inner_product(g, g + side_, g, 0.0f);
      }
      adder_.Add(rows_.data(), n, row_width_, weights_.data(), row_width_, idx, sums);
      place += side_;
    }
    adder_.AddSquares({gradients_.data(), n, width_, width_},
                      fisher_.data() + idx * width_ * width_);
  }
}

void KeyValueSums::AppendTo(SumBytes* bytes) {
  for (JointSums* sums : {&plain_, &by_keys_, &by_values_}) sums->AppendTo(bytes);
  AppendSums(&fisher_, bytes);
}

// Rows with settled means are T r, where r are those with angles: what a change of means turns to
// (TurningMeans) is taken off the keys.
KeyValueSums::Moments KeyValueSums::MomentsOf(const JointSums& sums, int64_t idx,
                                              const TurningMeans& means) const {
  Moments moments = {std::vector<double>(width_), std::vector<double>(width_ * width_)};
  const double weight = sums.weight[idx];
  if (weight == 0) return moments;
  const int64_t layer_idx = idx / n_groups_, first = idx % n_groups_ * side_;
  const int64_t of_layer = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  const auto change = [&](int64_t channel) {
    return double{means.settled()[layer_idx * of_layer + first + channel]} -
           double{means.of(static_cast<int>(layer_idx))[first + channel]};
  };
  // less(i, row): the change of channel i, whose angles are row[width_ + ...].
  const auto less = [&](int64_t i, const double* row) {
    if (n_pairs_ == 0 || i >= side_) return 0.0;
    const int64_t in_head = i % shape_.head_dim, pair = in_head % half_;
    if (in_head >= 2 * half_ || pair >= n_pairs_) return 0.0;
    const double* const angles = row + width_;
    const int64_t of_pair = i - in_head + pair;
    const double a = change(of_pair), b = change(of_pair + half_);
    return in_head < half_ ? a * angles[pair] - b * angles[n_pairs_ + pair]
                           : b * angles[pair] + a * angles[n_pairs_ + pair];
  };
  const double* const mean = &sums.mean[idx * row_width_];
  const double* const scatter = &sums.scatter[idx * row_width_ * row_width_];
  for (int64_t i = 0; i < width_; ++i) moments.mean[i] = mean[i] - less(i, mean);
  // S T^T, row by row, and then T of its columns.
  std::vector<double> half_way(row_width_ * width_), column(row_width_);
  for (int64_t i = 0; i < row_width_; ++i) {
    const double* const row = scatter + i * row_width_;
    for (int64_t j = 0; j < width_; ++j) half_way[i * width_ + j] = row[j] - less(j, row);
  }
  for (int64_t j = 0; j < width_; ++j) {
    for (int64_t i = 0; i < row_width_; ++i) column[i] = half_way[i * width_ + j];
    for (int64_t i = 0; i < width_; ++i) {
      moments.covariance[i * width_ + j] = (column[i] - less(i, column.data())) / weight;
    }
  }
  return moments;
}

Status KeyValueSums::Finish(const TurningMeans& means, int64_t n_tokens,
                            CalibrationStatistics* statistics) {
  JointMoments& to = statistics->key_values;
  to = {};
  const double fisher_scale = n_tokens > 0 ? 0.5 / static_cast<double>(n_tokens) : 0;
  const int64_t square = width_ * width_;
  for (int64_t idx = 0; idx < shape_.n_layers * n_groups_; ++idx) {
    const Moments plain = MomentsOf(plain_, idx, means);
    Moments weighed = MomentsOf(by_keys_, idx, means);
    const Moments by_values = MomentsOf(by_values_, idx, means);
    std::vector<double> apart(width_);  // half of what lies between the two means
    for (int64_t i = 0; i < width_; ++i) {
      apart[i] = (weighed.mean[i] - by_values.mean[i]) / 2;
      weighed.mean[i] -= apart[i];
    }
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t j = 0; j < width_; ++j) {
        double& x = weighed.covariance[i * width_ + j];
        x = (x + by_values.covariance[i * width_ + j]) / 2 + apart[i] * apart[j];
      }
    }
    const auto f = fisher_.begin() + idx * square;
    std::vector<double> fisher(f, f + square);
    for (double& x : fisher) x *= fisher_scale;
    if (!AreFinite(fisher) || !AreFinite(weighed.covariance)) {
      return Error(StatusCode::kDataLoss,
                   "layer {}: gradients are not finite; the weights are damaged", idx / n_groups_);
    }
    AppendFloats(plain.mean, &to.mean);
    AppendFloats(plain.covariance, &to.covariance);
    AppendFloats(weighed.mean, &to.weighed_mean);
    AppendFloats(weighed.covariance, &to.weighed_covariance);
    AppendFloats(fisher, &to.fisher);
  }
  plain_ = by_keys_ = by_values_ = {};
  return OkStatus();
}

}  // namespace kvlathe
