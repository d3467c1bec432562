#include "analysis/statistics/gram.h"

#include <cmath>

#include "base/check.h"

namespace kvlathe {

std::vector<double> GramOf(const HeadMoments& moments, int64_t head_idx, int dim,
                           int rows_per_token) {
  const auto first = moments.covariance.begin() + head_idx * dim * dim;
  std::vector<double> gram(first, first + int64_t{dim} * dim);
  const float* const mean = moments.mean.data() + head_idx * dim;
  for (int64_t i = 0; i < dim; ++i) {
    const double scaled = double{mean[i]} * rows_per_token;
    for (int64_t j = 0; j < dim; ++j) gram[i * dim + j] += scaled * mean[j];
  }
  return gram;
}

std::vector<double> MomentsAbout(std::span<const float> from, std::span<const float> mean,
                                 std::vector<double> covariance) {
  std::vector<double> shift(mean.begin(), mean.end());
  for (size_t i = 0; i < from.size(); ++i) shift[i] -= from[i];
  for (size_t i = 0; i < shift.size(); ++i) {
    for (size_t j = 0; j < shift.size(); ++j) {
      covariance[i * shift.size() + j] += shift[i] * shift[j];
    }
  }
  return covariance;
}

std::vector<double> WeightedSum(double a, const std::vector<double>& x, double b,
                                const std::vector<double>& y) {
  KVL_CHECK_EQ(x.size(), y.size());
  std::vector<double> sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = a * x[i] + b * y[i];
  return sum;
}

double TraceOf(const std::vector<double>& gram, int dim) {
  double trace = 0;
  for (int i = 0; i < dim; ++i) trace += gram[i * dim + i];
  return trace;
}

std::vector<double> StackedGram(const std::vector<double>& x, const std::vector<double>& y,
                                bool is_normalised, int dim) {
  const auto scale = [&](const std::vector<double>& gram) {
    const double trace = TraceOf(gram, dim);
    return is_normalised && trace > 0 ? 1 / trace : 1.0;
  };
  return WeightedSum(scale(x), x, scale(y), y);
}

bool AllFinite(const std::vector<double>& values) {
  for (const double x : values) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

std::vector<float> ToFloats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<float> TransposedSquare(const std::vector<float>& square, int dim) {
  std::vector<float> transposed(square.size());
  for (int row = 0; row < dim; ++row) {
    for (int column = 0; column < dim; ++column) {
      transposed[column * dim + row] = square[row * dim + column];
    }
  }
  return transposed;
}

}  // namespace kvlathe
