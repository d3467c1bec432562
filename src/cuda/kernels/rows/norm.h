// Norms of rows on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace kvlathe::cuda {

// NormFunction of machine/plans.h.
enum class NormKind : int { kRms, kLayer, kNone };

// NormPlan (machine/plans.h) with addresses.
struct NormParams {
  NormKind function = NormKind::kRms;
  const float* x = nullptr;
  int64_t n_rows = 0;
  int n_groups = 1;
  int n_dims = 0;
  int64_t stride = 0;
  const float* weight = nullptr;   // null: 1
  bool has_group_weights = false;  // [n_groups, n_dims]
  const float* bias = nullptr;     // of kLayer; null: 0
  float eps = 0;
  DType out_type = DType::kF32;
  void* out = nullptr;
  float* added_to = nullptr;
};

// Norms of the same rows, of which each has columns of its own. Sums are in F32: results lie within
// 1e-6 of the size of a row's largest from those in double.
void Normalise(cudaStream_t stream, std::span<const NormParams> norms);

// cudaSuccess where this build has kernels for the current GPU.
cudaError_t FindKernels();

}  // namespace kvlathe::cuda
