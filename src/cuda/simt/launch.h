// Launches kernels (simt.h) in a stream. For sources of kernels alone (*.cu): others call functions
// that these define.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

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

// Shared memory that a block of any kernel may have.
inline constexpr int64_t kUsualShared = 48 << 10;
// Of the parameters of a kernel, since CUDA 12.1.
inline constexpr size_t kMostParamBytes = 32764;
// Blocks y of a launch.
inline constexpr int kMostBlocksY = 65535;

// Lets blocks of a kernel have so much shared memory, beyond kUsualShared, on the current device.
// What is allowed never becomes less: launches with more may be part of a graph that is yet to be
// made.
inline void AllowShared(const void* kernel, int64_t n_bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int64_t> allowed;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return;
  const std::lock_guard lock(mutex);
  int64_t& most = allowed[{device, kernel}];
  if (n_bytes <= most) return;
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (cudaFuncSetAttribute(kernel, attribute, static_cast<int>(n_bytes)) == cudaSuccess) {
    most = n_bytes;
  }
}

// cudaSuccess where the program has the kernel for the current device.
template <typename Params>
cudaError_t FindKernel(void (*kernel)(Params)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// Nothing where a launch has no blocks. What goes wrong is told by cudaGetLastError.
template <typename Params>
void Launch(cudaStream_t stream, void (*kernel)(Params), const LaunchShape& shape,
            const Params& params) {
  static_assert(sizeof(Params) <= kMostParamBytes);
  if (shape.n_blocks == 0 || shape.n_blocks_y == 0) return;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kUsualShared) AllowShared(address, shape.shared_bytes);
#if defined(__CUDACC__)
  kernel<<<dim3(shape.n_blocks, shape.n_blocks_y), shape.n_threads, shape.shared_bytes, stream>>>(
      params);
#else
  emulated::AddKernel(
      stream, {address, shape.n_blocks, shape.n_blocks_y, shape.n_threads, shape.shared_bytes},
      [kernel, shape, params] { RunGrid(shape, [kernel, &params] { kernel(params); }); });
#endif
}

}  // namespace kvlathe::simt
