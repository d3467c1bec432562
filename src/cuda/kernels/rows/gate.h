// What stands between the two products of a feed-forward part, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe::cuda {

// GateKind of machine/plans.h.
enum class GateFunction : int {
  kSwiglu,
  kGegluTanh,
  kGelu,
  kGeluTanh,
  kRelu2,
  kXielu,
  kClampedSwiglu
};

// XieluNumbers of machine/plans.h.
struct XieluParams {
  float positive = 0;
  float negative = 0;
  float beta = 0;
  float eps = 0;
};

// GatePlan (machine/plans.h) with addresses.
struct GateParams {
  GateFunction function = GateFunction::kSwiglu;
  const float* x = nullptr;
  int64_t n_rows = 0;
  int64_t ffn_dim = 0;
  DType out_type = DType::kF32;
  void* out = nullptr;
  XieluParams xielu;
};

// To a relative 3e-6 for inputs above -5, to 1e-8 below.
void Gate(cudaStream_t stream, const GateParams& params);

}  // namespace kvlathe::cuda
