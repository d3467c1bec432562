#include "calibration/moment_sums.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

SliceJoint JoinMeans(double slice_weight, const std::vector<double>& slice_mean, double* weight,
                     double* mean) {
  const double all = *weight + slice_weight, share = slice_weight / all;
  SliceJoint joint{.factor = *weight * share};
  joint.shift.resize(slice_mean.size());
  for (size_t i = 0; i < slice_mean.size(); ++i) {
    joint.shift[i] = slice_mean[i] - mean[i];
    mean[i] += share * joint.shift[i];
  }
  *weight = all;
  return joint;
}

std::vector<double> CentreRows(const float* rows, int64_t n_rows, int64_t row_stride,
                               const float* weights, int64_t n_dims, float* centred,
                               int64_t centred_stride) {
  std::vector<double> mean(n_dims);
  double all = 0;
  for (int64_t t = 0; t < n_rows; ++t) {
    const double weight = weights != nullptr ? weights[t] : 1;
    const float* const row = rows + t * row_stride;
    for (int64_t i = 0; i < n_dims; ++i) mean[i] += weight * row[i];
    all += weight;
  }
  std::vector<float> centre(n_dims);
  for (int64_t i = 0; i < n_dims; ++i) {
    mean[i] /= all;
    centre[i] = static_cast<float>(mean[i]);
  }
  for (int64_t t = 0; t < n_rows; ++t) {
    const float root = weights != nullptr ? std::sqrt(weights[t]) : 1;
    const float* const row = rows + t * row_stride;
    float* const to = centred + t * centred_stride;
    for (int64_t i = 0; i < n_dims; ++i) to[i] = root * (row[i] - centre[i]);
  }
  return mean;
}

void ToCovariance(const double* scatter, double scale, int64_t n_dims, float* covariance) {
  for (int64_t i = 0; i < n_dims; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const auto x = static_cast<float>(scale * scatter[i * n_dims + j]);
      covariance[i * n_dims + j] = covariance[j * n_dims + i] = x;
    }
  }
}

double MomentAdder::Add(const float* rows, int64_t n_rows, int64_t n_dims, const MomentSums& to) {
  double trace = 0;
  for (int64_t first = 0; first < n_rows; first += kSliceRows) {
    trace += AddSlice(rows + first * n_dims, std::min(kSliceRows, n_rows - first), n_dims, to);
  }
  return trace;
}

double MomentAdder::AddSlice(const float* rows, int64_t n_rows, int64_t n_dims,
                             const MomentSums& to) {
  // The kernel takes rows of whole vectors.
  const int64_t width = (n_dims + 15) / 16 * 16;
  centred_.assign(n_rows * width, 0.0f);
  const std::vector<double> mean =
      CentreRows(rows, n_rows, n_dims, nullptr, n_dims, centred_.data(), width);
  product_.assign(width * width, 0.0f);
  kernels_->add_gram(centred_.data(), n_rows, width, product_.data());
  const SliceJoint joint = JoinMeans(static_cast<double>(n_rows), mean, to.weight, to.mean);
  double trace = 0;
  for (int64_t i = 0; i < n_dims; ++i) {
    const double shift = joint.factor * joint.shift[i];
    // It fills what lies right of the diagonal.
    for (int64_t j = 0; j <= i; ++j) {
      to.scatter[i * n_dims + j] += product_[j * width + i] + shift * joint.shift[j];
    }
    trace += product_[i * width + i];
  }
  return trace;
}

}  // namespace kvlathe
