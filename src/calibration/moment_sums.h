// Moments of rows about their mean, which are added up slice by slice. Nothing is summed about
// zero: rows whose mean is hundreds of times their deviation would leave no digits of the
// deviation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/kernels/elementwise/elementwise.h"

namespace kvlathe {

// The bytes of sums, piece by piece and always in the same order: so they are kept and read back
// (calibration/checkpoint.h).
using SumBytes = std::vector<std::span<std::byte>>;

template <typename T>
void AppendSums(std::vector<T>* sums, SumBytes* bytes) {
  bytes->push_back(std::as_writable_bytes(std::span(*sums)));
}

// A slice of rows is centred on its own mean in F32, which is exact but for the rounding of what is
// left; its products are summed in F32 and joined to those of other slices in F64. So many rows at
// most make a slice.
inline constexpr int64_t kSliceRows = 256;

// The moments of all rows so far, [n_dims] and [n_dims, n_dims].
struct MomentSums {
  double* weight;   // of all rows
  double* mean;     // [n_dims]
  double* scatter;  // [n_dims, n_dims], the lower triangle: sum of w (x - mean)(x - mean)^T
};

// The moments of several kinds of rows, as MomentSums has them.
struct JointSums {
  std::vector<double> weight;   // [n_matrices]
  std::vector<double> mean;     // [n_matrices, width]
  std::vector<double> scatter;  // [n_matrices, width, width]

  void AppendTo(SumBytes* bytes) {
    for (std::vector<double>* sums : {&weight, &mean, &scatter}) AppendSums(sums, bytes);
  }
};

// Of nothing yet.
inline JointSums MakeJointSums(int64_t n_matrices, int64_t width) {
  JointSums sums;
  sums.weight.resize(n_matrices);
  sums.mean.resize(n_matrices * width);
  sums.scatter.resize(n_matrices * width * width);
  return sums;
}

// How a slice joins the rows before it: the scatter of all is the sum of both about their own means
// and factor * shift shift^T, so nothing is ever subtracted (Chan, Golub and LeVeque 1983,
// "Algorithms for computing the sample variance").
struct SliceJoint {
  double factor = 0;
  std::vector<double> shift;  // [n_dims], from the mean so far to that of the slice
};

// Updates weight and mean by those of a slice, whose weight is above 0.
SliceJoint JoinMeans(double slice_weight, const std::vector<double>& slice_mean, double* weight,
                     double* mean);

// rows [n_rows, n_dims], row_stride apart, less their mean, [n_rows, centred_stride]; columns
// behind n_dims are left as they are. With `weights` [n_rows], of a sum above 0, the mean is
// weighed by them, and the rows that are left are multiplied by their roots. Returns the mean.
std::vector<double> CentreRows(const float* rows, int64_t n_rows, int64_t row_stride,
                               const float* weights, int64_t n_dims, float* centred,
                               int64_t centred_stride);

// covariance [n_dims, n_dims] = scatter * scale, on both sides of the diagonal.
void ToCovariance(const double* scatter, double scale, int64_t n_dims, float* covariance);

// Adds up the rows of one worker.
class MomentAdder {
 public:
  explicit MomentAdder(Isa isa) : kernels_(&GetElementwiseKernels(isa)) {}

  // Adds rows [n_rows, n_dims], which count once each. Returns the sum of the squares of slices
  // about their means: not finite where a value or its square is not.
  double Add(const float* rows, int64_t n_rows, int64_t n_dims, const MomentSums& to);

 private:
  double AddSlice(const float* rows, int64_t n_rows, int64_t n_dims, const MomentSums& to);

  const ElementwiseKernels* kernels_;
  std::vector<float> centred_, product_;
};

}  // namespace kvlathe
