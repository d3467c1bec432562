#include "cuda/kernels/attend/prefill_merge.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;
constexpr float kLog2E = 1.44269504f;

// A block of threads merges one row of a split.
KVL_KERNEL(kThreads) MergeKernel(KVL_PARAMS(PromptParams) p) {
  const PromptSplit& split = p.splits[BlockIdx()];
  const PromptHead& head = p.heads[split.head];
  const int row = BlockIdxY();
  if (row >= split.n_rows) return;
  const int64_t n_floats = PromptPartialFloats(split.n_rows, head.width);
  const float* const parts = p.partials + split.partial_offset;
  const float* const maxima = parts + int64_t{split.n_rows} * head.width + row;
  const float* const sums = maxima + (split.n_rows + 15) / 16 * 16;
  float most = -__builtin_inff();
  for (int part = 0; part < split.n_parts; ++part) {
    const float max = maxima[part * n_floats];
    if (sums[part * n_floats] > 0 && max > most) most = max;
  }
  float sum = 0;
  for (int part = 0; part < split.n_parts; ++part) {
    const float of_part = sums[part * n_floats];
    if (of_part > 0) sum += of_part * Exp2((maxima[part * n_floats] - most) * kLog2E);
  }
  const int of_head = split.row_begin + row;
  const int64_t to =
      of_head / head.gqa_group * head.out_stride + of_head % head.gqa_group * head.out_head_stride;
  for (int r = ThreadIdx(); r < head.width + head.n_cleared; r += kThreads) {
    float o = 0;
    for (int part = 0; part < split.n_parts && sum > 0 && r < head.width; ++part) {
      if (sums[part * n_floats] == 0) continue;
      const float weight = Exp2((maxima[part * n_floats] - most) * kLog2E);
      o += parts[part * n_floats + int64_t{row} * head.width + r] * weight;
    }
    if (sum > 0) o /= sum;
    if (head.out_type == DType::kBf16) {
      static_cast<uint16_t*>(head.out)[to + r] = static_cast<uint16_t>(Bf16OfFloat(o));
    } else {
      static_cast<float*>(head.out)[to + r] = o;
    }
  }
}

}  // namespace

void MergePromptParts(cudaStream_t stream, const PromptParams& params) {
  Launch(stream, MergeKernel,
         {.n_blocks = params.n_splits, .n_threads = kThreads, .n_blocks_y = params.most_rows},
         params);
}

}  // namespace kvlathe::cuda
