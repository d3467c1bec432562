// Compiled without contraction, so that embeddings have the CPU's bits.
#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/kernels/rows/take.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kMoveThreads = 128;

int BlocksFor(int64_t n) { return static_cast<int>((n + kMoveThreads - 1) / kMoveThreads); }

// A thread moves one word of all rows. Row i is read by rows up to i alone, so some are read before
// any of them is written.
template <typename Word>
KVL_KERNEL(kMoveThreads)
TakeRowsKernel(KVL_PARAMS(TakeRowsParams) p) {
  constexpr int kAtOnce = 8;
  const int64_t n_words = p.row_bytes / int64_t{sizeof(Word)};
  const int64_t word = int64_t{BlockIdx()} * kMoveThreads + ThreadIdx();
  if (word >= n_words) return;
  auto* const column = reinterpret_cast<Word*>(p.rows) + word;
  for (int64_t first = 0; first < p.n_rows; first += kAtOnce) {
    Word words[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < p.n_rows) words[i] = column[p.from[first + i] * n_words];
    }
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < p.n_rows) column[(first + i) * n_words] = words[i];
    }
  }
}

KVL_KERNEL(kMoveThreads) TakeChannelKernel(KVL_PARAMS(TakeChannelParams) p) {
  const int64_t idx = int64_t{BlockIdx()} * kMoveThreads + ThreadIdx();
  if (idx >= p.n_rows * p.n_channels) return;
  const int64_t row = idx / p.n_channels, nth = idx % p.n_channels;
  float* const from = p.rows + row * p.n_dims + p.channel + nth * p.channels_apart;
  p.taken[idx] = *from;
  *from = 0;
}

// Blocks x rows of kMoveThreads columns, blocks y.
KVL_DEVICE int64_t ColumnOfThread() { return int64_t{BlockIdxY()} * kMoveThreads + ThreadIdx(); }

KVL_KERNEL(kMoveThreads) EmbedKernel(KVL_PARAMS(EmbedParams) p) {
  const int64_t column = ColumnOfThread(), token = BlockIdx();
  if (column >= p.n_dims) return;
  const int64_t idx = token * p.n_dims + column;
  const bool is_held = p.is_held == nullptr || p.is_held[token] != 0;
  float y = is_held ? p.rows[idx] * p.scale : 0.0f;
  if (p.positions != nullptr) y += p.positions[idx];
  p.out[idx] = y;
}

KVL_KERNEL(kMoveThreads) BiasKernel(KVL_PARAMS(BiasParams) p) {
  const int64_t column = ColumnOfThread();
  if (column >= p.n_out) return;
  float* const y = p.y + BlockIdx() * p.y_stride + column;
  *y = (p.adds ? *y : 0.0f) + p.bias[column];
}

KVL_KERNEL(kMoveThreads) RoundKernel(KVL_PARAMS(RoundParams) p) {
  const int64_t column = ColumnOfThread(), row = BlockIdx();
  if (column >= p.n_dims) return;
  StoreRounded(Floats<1>{{p.from[row * p.n_dims + column]}}, DType::kBf16, p.to,
               row * p.to_stride + column);
}

LaunchShape ShapeOfRows(int64_t n_rows, int64_t n_columns) {
  return {.n_blocks = static_cast<int>(n_rows),
          .n_threads = kMoveThreads,
          .n_blocks_y = BlocksFor(n_columns)};
}

}  // namespace

void TakeRows(cudaStream_t stream, const TakeRowsParams& params) {
  const auto rows = reinterpret_cast<uintptr_t>(params.rows);
  const auto bytes = static_cast<uintptr_t>(params.row_bytes);
  const auto launch = [&]<typename Word>(Word) {
    Launch(stream, TakeRowsKernel<Word>,
           {.n_blocks = BlocksFor(params.row_bytes / int64_t{sizeof(Word)}),
            .n_threads = kMoveThreads},
           params);
  };
  if ((rows | bytes) % 16 == 0) return launch(Words4());
  if ((rows | bytes) % 4 == 0) return launch(uint32_t());
  launch(uint16_t());
}

void TakeChannel(cudaStream_t stream, const TakeChannelParams& params) {
  Launch(stream, TakeChannelKernel,
         {.n_blocks = BlocksFor(params.n_rows * params.n_channels), .n_threads = kMoveThreads},
         params);
}

void Embed(cudaStream_t stream, const EmbedParams& params) {
  Launch(stream, EmbedKernel, ShapeOfRows(params.n_tokens, params.n_dims), params);
}

void PutBias(cudaStream_t stream, const BiasParams& params) {
  Launch(stream, BiasKernel, ShapeOfRows(params.n_rows, params.n_out), params);
}

void RoundRows(cudaStream_t stream, const RoundParams& params) {
  Launch(stream, RoundKernel, ShapeOfRows(params.n_rows, params.n_dims), params);
}

}  // namespace kvlathe::cuda
