// Sums of x x^T over rows on a GPU, from which a sequence finds its basis.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe::cuda {

// GramPlan (machine/plans.h) with addresses.
struct GramRows {
  const std::byte* rows = nullptr;  // [n_rows, n_dims] of GramParams::type
  int64_t stride = 0;               // elements
  int64_t n_rows = 0;
  float* gram = nullptr;  // [n_dims, n_dims]
};

struct GramParams {
  const GramRows* items = nullptr;  // on the device; each has a gram of its own
  int n_items = 0;
  int n_dims = 0;  // a multiple of 16
  DType type = DType::kF32;
};

// Adds to the upper triangles, row after row.
void AddGrams(cudaStream_t stream, const GramParams& params);

}  // namespace kvlathe::cuda
