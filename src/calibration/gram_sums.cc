#include "calibration/gram_sums.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

double GramAdder::Add(const float* rows, int64_t n_rows, int64_t n_dims, const GramSums& to,
                      double weight) {
  AddColumns(rows, nullptr, n_rows, n_dims, weight, to.sum);
  return AddProducts(rows, n_rows, n_dims, weight, to.gram);
}

void GramAdder::AddWeighted(const float* rows, const float* weights, int64_t n_rows, int64_t n_dims,
                            const GramSums& to) {
  AddColumns(rows, weights, n_rows, n_dims, 1, to.sum);
  scaled_.resize(n_rows * n_dims);
  for (int64_t t = 0; t < n_rows; ++t) {
    const float root = std::sqrt(weights[t]);
    for (int64_t i = 0; i < n_dims; ++i) scaled_[t * n_dims + i] = root * rows[t * n_dims + i];
  }
  AddProducts(scaled_.data(), n_rows, n_dims, 1, to.gram);
}

void GramAdder::AddColumns(const float* rows, const float* weights, int64_t n_rows, int64_t n_dims,
                           double weight, double* sum) {
  constexpr int64_t kColumns = 16;  // at a time, so that the compiler takes vectors
  for (int64_t first = 0; first < n_dims; first += kColumns) {
    const int64_t n = std::min(kColumns, n_dims - first);
    float sums[kColumns] = {};
    for (int64_t t = 0; t < n_rows; ++t) {
      const float w = weights != nullptr ? weights[t] : 1;
      const float* const row = rows + t * n_dims + first;
      if (n == kColumns) {
        for (int64_t i = 0; i < kColumns; ++i) sums[i] += w * row[i];
      } else {
        for (int64_t i = 0; i < n; ++i) sums[i] += w * row[i];
      }
    }
    for (int64_t i = 0; i < n; ++i) sum[first + i] += weight * sums[i];
  }
}

double GramAdder::AddProducts(const float* rows, int64_t n_rows, int64_t n_dims, double weight,
                              double* gram) {
  // The kernel takes rows of whole vectors.
  const int64_t width = (n_dims + 15) / 16 * 16;
  if (width != n_dims) {
    padded_.assign(n_rows * width, 0.0f);
    for (int64_t t = 0; t < n_rows; ++t) {
      std::copy_n(rows + t * n_dims, n_dims, &padded_[t * width]);
    }
    rows = padded_.data();
  }
  product_.assign(width * width, 0.0f);
  kernels_->add_gram(rows, n_rows, width, product_.data());
  double trace = 0;
  for (int64_t i = 0; i < n_dims; ++i) {
    // It fills what lies right of the diagonal.
    for (int64_t j = 0; j <= i; ++j) gram[i * n_dims + j] += weight * product_[j * width + i];
    trace += product_[i * width + i];
  }
  return trace;
}

}  // namespace kvlathe
