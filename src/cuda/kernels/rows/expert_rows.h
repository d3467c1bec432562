// Rows that go to experts and come back, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvlathe::cuda {

// GatherRowsPlan (machine/expert_plans.h) with addresses.
struct GatherRowsParams {
  const std::byte* x = nullptr;
  std::byte* to = nullptr;
  int64_t row_bytes = 0;          // even
  const int64_t* from = nullptr;  // [n_rows]
  int64_t n_rows = 0;
};
void GatherRows(cudaStream_t stream, const GatherRowsParams& params);

// WeightedRowsPlan (machine/expert_plans.h) with addresses.
struct WeightedRowsParams {
  const float* x = nullptr;
  const int64_t* rows = nullptr;   // [n_rows, n_each]
  const float* weights = nullptr;  // [n_rows, n_each]
  int64_t n_rows = 0;
  int64_t n_each = 0;
  int64_t n_dims = 0;
  float* y = nullptr;
  bool accumulate = false;
};
// The bits of the CPU.
void AddWeighted(cudaStream_t stream, const WeightedRowsParams& params);

}  // namespace kvlathe::cuda
