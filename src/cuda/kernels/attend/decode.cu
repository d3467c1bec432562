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

// A block of threads merges a row of a split, in the order of its parts.
KVL_KERNEL(128) MergeSplitsKernel(KVL_PARAMS(DecodeParams) p) {
  const DecodeSplit& split = p.splits[simt::BlockIdxY()];
  const int row = simt::BlockIdx();
  if (row >= split.n_rows) return;
  const DecodeJob& job = p.jobs[split.job_idx];
  const int step = (split.n_rows + 15) / 16 * 16;
  const int64_t part_floats = int64_t{split.n_rows} * job.width + 2 * step;
  const float* const parts = p.partials + split.partial_offset;
  const float* const maxima = parts + int64_t{split.n_rows} * job.width + row;
  float most = kMinusInf;
  for (int part = 0; part < split.n_parts; ++part) {
    most = fmaxf(most, maxima[part * part_floats]);
  }
  float sum = 0;
  for (int part = 0; part < split.n_parts; ++part) {
    sum += simt::Exp2(maxima[part * part_floats] - most) * maxima[part * part_floats + step];
  }
  const int64_t head_stride = job.out_head_stride > 0 ? job.out_head_stride : job.width;
  for (int channel = simt::ThreadIdx(); channel < head_stride; channel += simt::BlockDim()) {
    float o = 0;
    if (channel < job.width) {
      for (int part = 0; part < split.n_parts; ++part) {
        o += simt::Exp2(maxima[part * part_floats] - most) *
             parts[part * part_floats + int64_t{row} * job.width + channel];
      }
    }
    DecodeItemRunner<1>::StoreOutput(job, split.row_begin + row, channel, sum == 0 ? 0 : o / sum);
  }
  if (job.scores != nullptr && simt::ThreadIdx() == 0) {
    DecodeItemRunner<1>::StoreSums(job, split.row_begin + row, most, sum);
  }
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
