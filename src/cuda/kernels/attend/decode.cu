#include "cuda/kernels/attend/decode.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

constexpr int kDecodeThreads = kMostDecodeWarps * simt::kWarp;

KVL_KERNEL(kDecodeThreads) DecodeRows8Kernel(KVL_PARAMS(DecodeParams) p) {
  DecodeItemRunner<1>(p, p.items[simt::BlockIdx()]).Run();
}
KVL_KERNEL(kDecodeThreads) DecodeRows16Kernel(KVL_PARAMS(DecodeParams) p) {
  DecodeItemRunner<2>(p, p.items[simt::BlockIdx()]).Run();
}

}  // namespace

int64_t DecodeSharedBytes(const DecodeParams& params) { return DecodeSharedOf(params).n_bytes; }

int WarpsThatFit(DecodeParams params, int64_t shared_bytes) {
  for (params.n_warps = kMostDecodeWarps; params.n_warps > 0; --params.n_warps) {
    if (DecodeSharedBytes(params) <= shared_bytes) break;
  }
  return params.n_warps;
}

void AttendDecode(cudaStream_t stream, const DecodeParams& params) {
  const simt::LaunchShape shape = {.n_blocks = params.n_items,
                                   .n_threads = params.n_warps * simt::kWarp,
                                   .shared_bytes = DecodeSharedBytes(params)};
  if (params.max_rows <= 8) {
    simt::Launch(stream, DecodeRows8Kernel, shape, params);
  } else {
    simt::Launch(stream, DecodeRows16Kernel, shape, params);
  }
  simt::Launch(stream, MergeSplitsKernel,
               {.n_blocks = kMostDecodeRows, .n_threads = 128, .n_blocks_y = params.n_splits},
               params);
}

}  // namespace kvlathe::cuda
