#include "cuda/kernels/rows/norm.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

// Sum over the block; `shared` has a float for each warp.
KVL_DEVICE float SumOfBlock(float x, float* shared) {
  const float of_warp = SumOfWarp(x);
  SyncBlock();
  if (Lane() == 0) shared[WarpIdx()] = of_warp;
  SyncBlock();
  float sum = 0;
  for (int i = 0; i < WarpCount(); ++i) sum += shared[i];
  return sum;
}

// A block normalises one group of a row.
KVL_KERNEL(kThreads) NormKernel(KVL_PARAMS(NormParams) p) {
  auto* const shared = reinterpret_cast<float*>(Shared());
  const int64_t first = BlockIdx() / p.n_groups * p.stride + BlockIdx() % p.n_groups * p.n_dims;
  const float* const x = p.x + first;
  float mean = 0;
  if (p.bias != nullptr) {
    float sum = 0;
    for (int i = ThreadIdx(); i < p.n_dims; i += kThreads) sum += x[i];
    mean = SumOfBlock(sum, shared) / static_cast<float>(p.n_dims);
  }
  float squares = 0;
  for (int i = ThreadIdx(); i < p.n_dims; i += kThreads) squares += (x[i] - mean) * (x[i] - mean);
  const float variance = SumOfBlock(squares, shared) / static_cast<float>(p.n_dims);
  const float scale = 1.0f / sqrtf(variance + p.eps);
  for (int i = ThreadIdx(); i < p.n_dims; i += kThreads) {
    float y = (x[i] - mean) * scale * p.weight[i];
    if (p.bias != nullptr) y += p.bias[i];
    if (p.out_type == DType::kBf16) {
      static_cast<uint16_t*>(p.out)[first + i] = static_cast<uint16_t>(Bf16OfFloat(y));
    } else {
      static_cast<float*>(p.out)[first + i] = y;
    }
    if (p.added_to != nullptr) p.added_to[first + i] += y;
  }
}

}  // namespace

void Normalise(cudaStream_t stream, const NormParams& params) {
  const LaunchShape shape = {.n_blocks = static_cast<int>(params.n_rows * params.n_groups),
                             .n_threads = kThreads,
                             .shared_bytes = kThreads / kWarp * sizeof(float)};
  Launch(stream, NormKernel, shape, params);
}

}  // namespace kvlathe::cuda
