// The inner loops of products with few rows, on operands of mma.m16n8k16 (simt/simt_device.h): 16
// outputs are the rows of A, 8 rows of x the columns of B.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/weights/block_reader.cuh"
#include "cuda/kernels/weights/row_products.h"
#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

inline constexpr int kTileOuts = 16;
inline constexpr int kTileRows = 8;

// Four BF16 numbers of a row of x or W from input `first` on. kWhole: they are there, at a multiple
// of 8 bytes; else those from n_in on are zero.
template <bool kWhole>
KVL_DEVICE simt::Words2 LoadQuad(const uint16_t* row, int first, int n_in) {
  if constexpr (kWhole) return simt::LoadWords2(row + first);
  uint32_t x[4] = {};
  for (int j = 0; j < 4; ++j) {
    if (first + j < n_in) x[j] = row[first + j];
  }
  return {{x[0] | x[1] << 16, x[2] | x[3] << 16}};
}

// Where a lane reads: the rows of W of its outputs g and g + 8 in each tile, and its row of x. Rows
// that do not exist are others that do, whose products nobody takes.
template <int kTiles>
struct LaneRows {
  const std::byte* w[kTiles][2];
  const uint16_t* x;
};

// Adds products of steps [begin, end) of weights in blocks, of one block each. acc as c of
// m16n8k16. Rows of x begin at multiples of 8 bytes.
template <WeightType kType, int kTiles>
struct StretchLoop {
  using Reader = BlockReader<kType>;
  static constexpr int kStretchesOfStep = Reader::kStretches;
  static constexpr bool kFitsTwice = Reader::kFitsTwice;

  template <bool kWhole>
  KVL_DEVICE static void Run(const LaneRows<kTiles>& rows, int /*n_in*/, int begin, int end,
                             float (&acc)[kTiles][4]) {
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      const int64_t at = int64_t{step} * Reader::kBlockBytes;
#pragma unroll
      for (int c = 0; c < kStretchesOfStep; ++c) {
        uint32_t b[2][2];
        LoadOperands(rows.x + (step * kStretchesOfStep + c) * kStretch, b);
        float sums[2][4] = {};  // of the rows of x, over the halves
        if constexpr (Reader::kHasMin) SumRows(b, sums);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          AddStretch(rows.w[tile][0] + at, rows.w[tile][1] + at, c, b, sums, acc[tile]);
        }
      }
    }
  }

 private:
  // What a lane has of B for the halves of a stretch, in the pairs of BlockReader.
  KVL_DEVICE static void LoadOperands(const uint16_t* x, uint32_t (&b)[2][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const simt::Words2 quad = simt::LoadWords2(x + 16 * half + 4 * (simt::Lane() % 4));
      b[half][0] = simt::PermuteBytes(quad.x[0], quad.x[1], 0x5410);
      b[half][1] = simt::PermuteBytes(quad.x[0], quad.x[1], 0x7632);
    }
  }
  KVL_DEVICE static void SumRows(const uint32_t (&b)[2][2], float (&sums)[2][4]) {
    constexpr uint32_t kOnes = 0x3f803f80u;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    simt::MmaBf16(sums[0], ones, b[0]);
    simt::MmaBf16(Reader::kHalves ? sums[1] : sums[0], ones, b[1]);
  }
  KVL_DEVICE static void AddStretch(const std::byte* low, const std::byte* high, int c,
                                    const uint32_t (&b)[2][2], const float (&sums)[2][4],
                                    float (&acc)[4]) {
    const int i = simt::Lane() % 4;
    uint32_t pairs[2][4];  // of output g, and of output g + 8
    Reader::Codes(low, c, i, pairs[0]);
    Reader::Codes(high, c, i, pairs[1]);
    float products[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t a[4] = {pairs[0][2 * half], pairs[1][2 * half], pairs[0][2 * half + 1],
                             pairs[1][2 * half + 1]};
      simt::MmaBf16(products[Reader::kHalves ? half : 0], a, b[half]);
    }
    const StretchFactors factors[2] = {Reader::FactorsOf(low, c), Reader::FactorsOf(high, c)};
#pragma unroll
    for (int half = 0; half < (Reader::kHalves ? 2 : 1); ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        acc[j] += factors[j / 2].scale[half] * products[half][j];
        if constexpr (Reader::kHasMin) acc[j] -= factors[j / 2].min[half] * sums[half][j];
      }
    }
  }
};

// The same of weights of BF16, a stretch a step.
template <int kTiles>
struct StretchLoop<WeightType::kBf16, kTiles> {
  static constexpr int kStretchesOfStep = 1;
  static constexpr bool kFitsTwice = true;

  template <bool kWhole>
  KVL_DEVICE static void Run(const LaneRows<kTiles>& rows, int n_in, int begin, int end,
                             float (&acc)[kTiles][4]) {
    const int i = simt::Lane() % 4;
#pragma unroll(kWhole ? 4 : 1)
    for (int step = begin; step < end; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = step * kStretch + 16 * half + 4 * i;
        const simt::Words2 b = LoadQuad<kWhole>(rows.x, first, n_in);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const auto* const low = reinterpret_cast<const uint16_t*>(rows.w[tile][0]);
          const auto* const high = reinterpret_cast<const uint16_t*>(rows.w[tile][1]);
          const simt::Words2 w[2] = {LoadQuad<kWhole>(low, first, n_in),
                                     LoadQuad<kWhole>(high, first, n_in)};
          const uint32_t a[4] = {w[0].x[0], w[1].x[0], w[0].x[1], w[1].x[1]};
          simt::MmaBf16(acc[tile], a, b.x);
        }
      }
    }
  }
};

}  // namespace kvlathe::cuda
