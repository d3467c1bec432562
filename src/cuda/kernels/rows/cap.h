// Numbers that are capped on a GPU: logits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvlathe::cuda {

// CapPlan (machine/plans.h) with addresses.
struct CapParams {
  float* x = nullptr;
  int64_t n_numbers = 0;
  float cap = 0;
};

// To a relative 1e-6.
void Cap(cudaStream_t stream, const CapParams& params);

}  // namespace kvlathe::cuda
