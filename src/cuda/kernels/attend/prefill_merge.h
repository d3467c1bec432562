// Merges the partial results of rows whose entries several items share (prefill.h).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/attend/prefill.h"

namespace kvlathe::cuda {

// Of all params.splits, one part after the other, so that the order does not depend on who was
// first.
void MergePromptParts(cudaStream_t stream, const PromptParams& params);

}  // namespace kvlathe::cuda
