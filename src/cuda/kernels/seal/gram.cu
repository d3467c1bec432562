#include "cuda/kernels/seal/gram.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kTile = 16;  // of a gram, both ways
constexpr int kThreads = kTile * kTile;
constexpr int kRows = 64;  // that are in shared memory at a time

// Numbers [kRows][kTile] of rows, from a channel on; rows beyond the last are 0.
KVL_DEVICE void ReadTile(const GramParams& p, const GramRows& item, int64_t first_row,
                         int first_channel, float* to) {
  for (int i = ThreadIdx(); i < kRows * kTile; i += kThreads) {
    const int64_t row = first_row + i / kTile;
    const int64_t at = row * item.stride + first_channel + i % kTile;
    if (row >= item.n_rows) {
      to[i] = 0;
    } else if (p.type == DType::kBf16) {
      to[i] = FloatOfBf16(reinterpret_cast<const uint16_t*>(item.rows)[at]);
    } else {
      to[i] = reinterpret_cast<const float*>(item.rows)[at];
    }
  }
}

// A block of threads takes a tile of a gram, each thread a number of it.
KVL_KERNEL(kThreads) GramKernel(KVL_PARAMS(GramParams) p) {
  const GramRows& item = p.items[BlockIdx()];
  const int n_tiles = p.n_dims / kTile;
  const int row_tile = BlockIdxY() / n_tiles, column_tile = BlockIdxY() % n_tiles;
  if (row_tile > column_tile) return;
  auto* const left = reinterpret_cast<float*>(Shared());
  float* const right = left + kRows * kTile;
  const int i = ThreadIdx() / kTile, j = ThreadIdx() % kTile;
  float* const to = item.gram + int64_t{row_tile * kTile + i} * p.n_dims + column_tile * kTile + j;
  float sum = *to;
  for (int64_t first = 0; first < item.n_rows; first += kRows) {
    SyncBlock();
    ReadTile(p, item, first, row_tile * kTile, left);
    ReadTile(p, item, first, column_tile * kTile, right);
    SyncBlock();
    for (int row = 0; row < kRows; ++row) sum += left[row * kTile + i] * right[row * kTile + j];
  }
  *to = sum;
}

}  // namespace

void AddGrams(cudaStream_t stream, const GramParams& params) {
  const int n_tiles = params.n_dims / kTile;
  Launch(stream, GramKernel,
         {.n_blocks = params.n_items,
          .n_threads = kThreads,
          .shared_bytes = 2 * kRows * kTile * sizeof(float),
          .n_blocks_y = n_tiles * n_tiles},
         params);
}

}  // namespace kvlathe::cuda
