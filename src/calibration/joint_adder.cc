#include "calibration/joint_adder.h"

#include <algorithm>
#include <numeric>

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

void JointAdder::Add(const float* rows, int64_t n_rows, int64_t row_stride, const float* weights,
                     int64_t width, int64_t idx, JointSums* sums) {
  centred_.resize(kSliceRows * width);
  double* const scatter = &sums->scatter[idx * width * width];
  for (int64_t first = 0; first < n_rows; first += kSliceRows) {
    const int64_t n = std::min(kSliceRows, n_rows - first);
    const float* const of_slice = weights != nullptr ? weights + first : nullptr;
    const double weight =
        of_slice != nullptr ? std::accumulate(of_slice, of_slice + n, 0.0) : static_cast<double>(n);
    if (weight == 0) continue;
    std::vector<double> mean(width);
    pool_->Run([&](int worker_id) {
      const Range columns = ShareOf(width, kColumnStep, worker_id, pool_->n_workers());
      const int64_t n_columns = columns.end - columns.begin;
      if (n_columns == 0) return;
      const std::vector<double> of_columns =
          CentreRows(rows + first * row_stride + columns.begin, n, row_stride, of_slice, n_columns,
                     centred_.data() + columns.begin, width);
      std::copy(of_columns.begin(), of_columns.end(), mean.begin() + columns.begin);
    });
    const SliceJoint joint = JoinMeans(weight, mean, &sums->weight[idx], &sums->mean[idx * width]);
    pool_->Run([&](int worker_id) {
      const Range columns = ShareOf(width, kColumnStep, worker_id, pool_->n_workers());
      const int64_t n_columns = columns.end - columns.begin;
      if (n_columns == 0) return;
      std::vector<float>& product = products_[worker_id];
      product.resize(width * n_columns);
      MultiplyColumns(centred_.data(), n, width, width, columns, false, product.data(), n_columns);
      for (int64_t i = 0; i < width; ++i) {
        const double shift = joint.factor * joint.shift[i];
        double* const to = scatter + i * width + columns.begin;
        for (int64_t j = 0; j < n_columns; ++j) {
          to[j] += product[i * n_columns + j] + shift * joint.shift[columns.begin + j];
        }
      }
    });
  }
}

void JointAdder::AddSquares(const AdderRows& rows, float* sums) {
  pool_->Run([&](int worker_id) {
    const Range columns = ShareOf(rows.width, kColumnStep, worker_id, pool_->n_workers());
    if (columns.begin == columns.end) return;
    MultiplyColumns(rows.first, rows.n_rows, rows.stride, rows.width, columns, true,
                    sums + columns.begin, rows.width);
  });
}

}  // namespace kvlathe
