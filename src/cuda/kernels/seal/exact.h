// Exact entries of sealed runs on a GPU (docs/methods/gear.md), those that the CPU chooses
// (cpu/kernels/seal/seal_exact.cc).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/seal/sealed_head.h"

namespace kvlathe::cuda {

struct ExactParams {
  SealKernelParams all;
  int n_heads = 0;
  // Blocks of a layer that share its record, by its first head.
  const SealedPlace* layer_places = nullptr;
  int n_layer_places = 0;
  bool has_codebook = false;  // exact entries of K are those of the run that lie farthest out
};

// Marks the exact entries of both sides in SealedRepairs::exact, and writes where those of blocks
// end. Before scales are made.
void MarkExact(cudaStream_t stream, const ExactParams& params);
// Writes counts, places and differences of the entries. Behind the codes, and behind the factors
// where there are any.
void StoreExact(cudaStream_t stream, const ExactParams& params);

}  // namespace kvlathe::cuda
