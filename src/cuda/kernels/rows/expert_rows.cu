// Compiled without contraction, so that sums have the CPU's bits.
#include "cuda/kernels/rows/expert_rows.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kExpertThreads = 128;

// Blocks x rows of kExpertThreads columns, blocks y.
KVL_DEVICE int64_t ColumnOfThread() { return int64_t{BlockIdxY()} * kExpertThreads + ThreadIdx(); }

LaunchShape ShapeOfExpertRows(int64_t n_rows, int64_t n_columns) {
  return {.n_blocks = static_cast<int>(n_rows),
          .n_threads = kExpertThreads,
          .n_blocks_y = static_cast<int>((n_columns + kExpertThreads - 1) / kExpertThreads)};
}

template <typename Word>
KVL_KERNEL(kExpertThreads)
GatherRowsKernel(KVL_PARAMS(GatherRowsParams) p) {
  const int64_t n_words = p.row_bytes / int64_t{sizeof(Word)}, word = ColumnOfThread();
  if (word >= n_words) return;
  const int64_t row = BlockIdx();
  reinterpret_cast<Word*>(p.to)[row * n_words + word] =
      reinterpret_cast<const Word*>(p.x)[p.from[row] * n_words + word];
}

KVL_KERNEL(kExpertThreads) WeightedRowsKernel(KVL_PARAMS(WeightedRowsParams) p) {
  const int64_t column = ColumnOfThread(), row = BlockIdx();
  if (column >= p.n_dims) return;
  const int64_t* const rows = p.rows + row * p.n_each;
  const float* const weights = p.weights + row * p.n_each;
  float sum = weights[0] * p.x[rows[0] * p.n_dims + column];
  for (int64_t k = 1; k < p.n_each; ++k) sum += weights[k] * p.x[rows[k] * p.n_dims + column];
  float* const to = p.y + row * p.n_dims + column;
  *to = p.accumulate ? *to + sum : sum;
}

}  // namespace

void GatherRows(cudaStream_t stream, const GatherRowsParams& params) {
  const uintptr_t places = reinterpret_cast<uintptr_t>(params.x) |
                           reinterpret_cast<uintptr_t>(params.to) |
                           static_cast<uintptr_t>(params.row_bytes);
  const auto launch = [&]<typename Word>(Word) {
    Launch(stream, GatherRowsKernel<Word>,
           ShapeOfExpertRows(params.n_rows, params.row_bytes / int64_t{sizeof(Word)}), params);
  };
  if (places % 16 == 0) return launch(Words4());
  if (places % 4 == 0) return launch(uint32_t());
  launch(uint16_t());
}

void AddWeighted(cudaStream_t stream, const WeightedRowsParams& params) {
  Launch(stream, WeightedRowsKernel, ShapeOfExpertRows(params.n_rows, params.n_dims), params);
}

}  // namespace kvlathe::cuda
