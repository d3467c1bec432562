// Low-rank factors of what the codes of runs lose (docs/methods/gear.md) on a GPU, with the bytes
// that the CPU finds (cpu/kernels/seal/seal_lowrank.cc): sums are taken in its order.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/seal/sealed_head.h"

namespace kvlathe::cuda {

// One side of a run of a head, whose residual is there.
struct LowRankFit {
  int head = 0;
  bool is_key = true;
  const float* start = nullptr;  // [lowrank][rank], with which the iteration begins
  float* p = nullptr;            // [lowrank][rank]
  float* q = nullptr;            // [lowrank][tokens]
  // With what the residual is multiplied one after the other, with what B is, and whether the
  // residual is not 0.
  float* scales = nullptr;  // [5]
};

struct LowRankParams {
  SealKernelParams all;
  const LowRankFit* fits = nullptr;  // on the device
  int n_fits = 0;
  int power_loops = 1;
  int most_blocks = 0;  // of the runs, and their most columns
  int most_columns = 0;
};

void FitLowRank(cudaStream_t stream, const LowRankParams& params);

}  // namespace kvlathe::cuda
