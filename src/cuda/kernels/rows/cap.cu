#include <algorithm>

#include "cuda/kernels/attend/score_cap.cuh"
#include "cuda/kernels/rows/cap.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kCapThreads = 256;
constexpr int64_t kMostCapBlocks = 4096;

KVL_KERNEL(kCapThreads) CapKernel(KVL_PARAMS(CapParams) p) {
  const TanhCap cap(p.cap);
  const int64_t step = int64_t{GridDim()} * kCapThreads;
  for (int64_t i = int64_t{BlockIdx()} * kCapThreads + ThreadIdx(); i < p.n_numbers; i += step) {
    p.x[i] = cap.Of(p.x[i]);
  }
}

}  // namespace

void Cap(cudaStream_t stream, const CapParams& params) {
  const int64_t n_blocks = (params.n_numbers + kCapThreads - 1) / kCapThreads;
  Launch(
      stream, CapKernel,
      {.n_blocks = static_cast<int>(std::min(n_blocks, kMostCapBlocks)), .n_threads = kCapThreads},
      params);
}

}  // namespace kvlathe::cuda
