#include <algorithm>

#include "cuda/kernels/weights/row_products.cuh"
#include "cuda/kernels/weights/row_products.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

// Products in F32: a warp has one output and kTileRows rows.
KVL_KERNEL(kProductThreads) FloatProductKernel(KVL_PARAMS(ProductsParams) p) {
  const PlacedRows placed = RowsOfBlock(p);
  const RowProduct& product = placed.product;
  const int out = BlockIdx() * kProductWarps + WarpIdx();
  const int n_rows = product.n_rows - placed.first_row;
  if (out >= product.n_out || n_rows <= 0) return;
  const auto* const w = reinterpret_cast<const float*>(product.w + out * product.w_row_bytes);
  const float* const x = static_cast<const float*>(product.x) + placed.first_row * product.x_stride;
  float sums[kTileRows] = {};
  for (int k = Lane(); k < product.n_in; k += kWarp) {
    const float weight = w[k];
    for (int row = 0; row < kTileRows; ++row) {
      if (row < n_rows) sums[row] += weight * x[row * product.x_stride + k];
    }
  }
  for (int row = 0; row < kTileRows; ++row) {
    const float sum = SumOfWarp(sums[row]);
    if (Lane() == 0 && row < n_rows) PutSum(p, product, placed.first_row + row, out, sum);
  }
}

void LaunchFloatProducts(cudaStream_t stream, const ProductsParams& params) {
  Launch(stream, FloatProductKernel,
         {.n_blocks = (params.max_out + kProductWarps - 1) / kProductWarps,
          .n_threads = kProductThreads,
          .n_blocks_y = params.n_products * params.n_row_tiles()},
         params);
}

void LaunchOfType(cudaStream_t stream, const ProductsParams& params) {
  switch (params.numbers.type) {
    using enum WeightType;
    case kF32:
      return LaunchFloatProducts(stream, params);
    case kBf16:
      if (!params.in_quads) return LaunchProducts<kBf16, false>(stream, params);
      return LaunchProducts<kBf16>(stream, params);
    case kQ4_0:
      return LaunchProducts<kQ4_0>(stream, params);
    case kQ4_1:
      return LaunchProducts<kQ4_1>(stream, params);
    case kQ5_0:
      return LaunchProducts<kQ5_0>(stream, params);
    case kQ5_1:
      return LaunchProducts<kQ5_1>(stream, params);
    case kQ8_0:
      return LaunchProducts<kQ8_0>(stream, params);
    case kQ2_K:
      return LaunchProducts<kQ2_K>(stream, params);
    case kQ3_K:
      return LaunchProducts<kQ3_K>(stream, params);
    case kQ4_K:
      return LaunchProducts<kQ4_K>(stream, params);
    case kQ5_K:
      return LaunchProducts<kQ5_K>(stream, params);
    case kQ6_K:
      return LaunchProducts<kQ6_K>(stream, params);
    case kIq4Nl:
      return LaunchProducts<kIq4Nl>(stream, params);
    case kIq4Xs:
      return LaunchProducts<kIq4Xs>(stream, params);
    case kMxfp4:
      return LaunchProducts<kMxfp4>(stream, params);
  }
}

}  // namespace

void MultiplyRows(cudaStream_t stream, const ProductNumbers& numbers,
                  std::span<const RowProduct> products) {
  while (!products.empty()) {
    ProductsParams params;
    params.numbers = numbers;
    for (const RowProduct& product : products) {
      const int max_rows = std::max(params.max_rows, product.n_rows);
      // Blocks y of one product are few enough for half a million rows.
      const int n_most = std::min(kProductsOfLaunch, kMostBlocksY / std::max(1, TilesOf(max_rows)));
      if (params.n_products > 0 && params.n_products >= n_most) break;
      params.products[params.n_products++] = product;
      params.max_rows = max_rows;
      params.max_out = std::max(params.max_out, product.n_out);
      params.in_quads = params.in_quads && InQuads(product);
    }
    LaunchOfType(stream, params);
    products = products.subspan(params.n_products);
  }
}

}  // namespace kvlathe::cuda
