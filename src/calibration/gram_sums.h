// Sums of products of rows, in F32 within a slice of rows and in F64 across slices.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/kernels/elementwise/elementwise.h"

namespace kvlathe {

// The places that sums over rows of n_dims values are added to.
struct GramSums {
  double* sum;   // [n_dims]
  double* gram;  // [n_dims, n_dims], of which the lower triangle is added to
};

// Adds up the rows of one worker.
class GramAdder {
 public:
  explicit GramAdder(Isa isa) : kernels_(&GetElementwiseKernels(isa)) {}

  // Adds rows [n_rows, n_dims], a few hundred a call; rows and products count `weight` times.
  // Returns the sum of what it added to the diagonal: not finite where a value or its square is
  // not.
  double Add(const float* rows, int64_t n_rows, int64_t n_dims, const GramSums& to,
             double weight = 1);
  // The same with row t counted weights[t] >= 0 times.
  void AddWeighted(const float* rows, const float* weights, int64_t n_rows, int64_t n_dims,
                   const GramSums& to);

 private:
  void AddColumns(const float* rows, const float* weights, int64_t n_rows, int64_t n_dims,
                  double weight, double* sum);
  double AddProducts(const float* rows, int64_t n_rows, int64_t n_dims, double weight,
                     double* gram);

  const ElementwiseKernels* kernels_;
  std::vector<float> padded_, scaled_, product_;
};

}  // namespace kvlathe
