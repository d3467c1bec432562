// Launches kernels (simt.h) in a stream. For sources of kernels alone (*.cu): others call functions
// that these define.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/simt/simt.h"
#if !defined(__CUDACC__)
#include "cuda/emulated/emulated_runtime.h"
#endif

namespace kvlathe::simt {

#if defined(__CUDACC__)
struct LaunchShape {
  int n_blocks = 1;
  int n_threads = 32;
  int64_t shared_bytes = 0;
  int n_blocks_y = 1;
};
#endif

// Nothing where a launch has no blocks. What goes wrong is told by cudaGetLastError.
template <typename Params>
void Launch(cudaStream_t stream, void (*kernel)(Params), const LaunchShape& shape,
            const Params& params) {
  if (shape.n_blocks == 0 || shape.n_blocks_y == 0) return;
#if defined(__CUDACC__)
  constexpr int64_t kUsualShared = 48 << 10;
  if (shape.shared_bytes > kUsualShared) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shape.shared_bytes));
  }
  kernel<<<dim3(shape.n_blocks, shape.n_blocks_y), shape.n_threads, shape.shared_bytes, stream>>>(
      params);
#else
  emulated::AddKernel(
      stream, [kernel, shape, params] { RunGrid(shape, [kernel, &params] { kernel(params); }); });
#endif
}

}  // namespace kvlathe::simt
