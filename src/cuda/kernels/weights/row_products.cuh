// The kernels behind row_products.h; sources instantiate them for some of the weight types each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/kernels/weights/weight_loops.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {

inline constexpr int kProductThreads = 256;
inline constexpr int kProductWarps = kProductThreads / simt::kWarp;

// How many products travel with a launch.
inline constexpr int kProductsOfLaunch = 48;

constexpr int TilesOf(int n_rows) { return (n_rows + kTileRows - 1) / kTileRows; }

struct ProductsParams {
  ProductNumbers numbers;
  RowProduct products[kProductsOfLaunch];
  int n_products = 0;
  int max_rows = 0, max_out = 0;  // of a product
  bool in_quads = true;           // all of them

  int n_row_tiles() const { return TilesOf(max_rows); }
};
static_assert(sizeof(ProductsParams) <= 4096);

// Product BlockIdxY() / n_row_tiles, rows from kTileRows * (BlockIdxY() % n_row_tiles) on.
struct PlacedRows {
  const RowProduct& product;
  int first_row = 0;
};
KVL_DEVICE PlacedRows RowsOfBlock(const ProductsParams& p) {
  const int n_row_tiles = TilesOf(p.max_rows);
  return {p.products[simt::BlockIdxY() / n_row_tiles], simt::BlockIdxY() % n_row_tiles * kTileRows};
}

// y[row][out] takes a sum.
KVL_DEVICE void PutSum(const ProductsParams& p, const RowProduct& product, int row, int out,
                       float sum) {
  if (product.bias != nullptr) sum += product.bias[out];
  const int64_t idx = row * product.y_stride + out;
  if (p.numbers.accumulate) sum += static_cast<const float*>(product.y)[idx];
  StoreRounded(Floats<1>{{sum}}, p.numbers.y_type, product.y, idx);
}

// A block has kTiles tiles of outputs; its warps share the inputs, each a range of them, and their
// sums are added up in the order of the warps. kWhole as in LoadQuad.
template <WeightType kType, int kTiles, bool kWhole>
KVL_KERNEL(kProductThreads, kTiles == 1 && StretchLoop<kType, 1>::kStretchesOfStep == 1 ? 3 : 2)
ProductKernel(KVL_PARAMS(ProductsParams) p) {
  using Loop = StretchLoop<kType, kTiles>;
  constexpr int kOuts = kTiles * kTileOuts, kInputsOfStep = Loop::kStretchesOfStep * kStretch;
  const PlacedRows placed = RowsOfBlock(p);
  const RowProduct& product = placed.product;
  const int first_out = simt::BlockIdx() * kOuts;
  const int n_rows = product.n_rows - placed.first_row;
  if (first_out >= product.n_out || n_rows <= 0) return;
  const int g = simt::Lane() / 4, i = simt::Lane() % 4;
  LaneRows<kTiles> rows;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int r = 0; r < 2; ++r) {
      const int out = first_out + tile * kTileOuts + r * 8 + g;
      const int last = product.n_out - 1;
      rows.w[tile][r] = product.w + (out < last ? out : last) * product.w_row_bytes;
    }
  }
  const int row = placed.first_row + (g < n_rows ? g : n_rows - 1);
  rows.x = static_cast<const uint16_t*>(product.x) + row * product.x_stride;
  const int n_steps = (product.n_in + kInputsOfStep - 1) / kInputsOfStep;
  const int begin = n_steps * simt::WarpIdx() / kProductWarps;
  const int end = n_steps * (simt::WarpIdx() + 1) / kProductWarps;
  float acc[kTiles][4] = {};
  Loop::template Run<kWhole>(rows, product.n_in, begin, end, acc);

  auto* const sums = reinterpret_cast<float*>(simt::Shared());  // [warps][kTileRows][kOuts]
  float* const mine = sums + simt::WarpIdx() * kTileRows * kOuts;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int j = 0; j < 4; ++j) {
      mine[(2 * i + j % 2) * kOuts + tile * kTileOuts + j / 2 * 8 + g] = acc[tile][j];
    }
  }
  simt::SyncBlock();
  for (int idx = simt::ThreadIdx(); idx < kTileRows * kOuts; idx += kProductThreads) {
    const int sum_row = idx / kOuts, out = first_out + idx % kOuts;
    if (sum_row >= n_rows || out >= product.n_out) continue;
    float sum = 0;
    for (int w = 0; w < kProductWarps; ++w) sum += sums[w * kTileRows * kOuts + idx];
    PutSum(p, product, placed.first_row + sum_row, out, sum);
  }
}

template <WeightType kType, int kTiles, bool kWhole>
void LaunchTiles(cudaStream_t stream, const ProductsParams& params) {
  constexpr int kOuts = kTiles * kTileOuts;
  simt::Launch(stream, ProductKernel<kType, kTiles, kWhole>,
               {.n_blocks = (params.max_out + kOuts - 1) / kOuts,
                .n_threads = kProductThreads,
                .shared_bytes = kProductWarps * kTileRows * kOuts * int64_t{sizeof(float)},
                .n_blocks_y = params.n_products * params.n_row_tiles()},
               params);
}

// With two tiles a block reads rows of x for twice as many outputs. Outputs alone decide, so that
// the number of rows changes no bit; where they are few, blocks would be fewer than a GPU has room
// for.
template <WeightType kType, bool kWhole = true>
void LaunchProducts(cudaStream_t stream, const ProductsParams& params) {
  constexpr int kOutsForTwoTiles = 8192;
  constexpr int kMostTiles = kWhole && StretchLoop<kType, 1>::kFitsTwice ? 2 : 1;
  if (params.max_out >= kOutsForTwoTiles) {
    return LaunchTiles<kType, kMostTiles, kWhole>(stream, params);
  }
  LaunchTiles<kType, 1, kWhole>(stream, params);
}

}  // namespace kvlathe::cuda
