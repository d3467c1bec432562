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

// Four BF16 numbers of a row of x or W from input `first` on, zero from n_in on.
KVL_DEVICE simt::Words2 LoadQuad(const uint16_t* row, int first, int n_in, bool in_fours) {
  if (in_fours && first + 4 <= n_in) return simt::LoadWords2(row + first);
  uint32_t x[4] = {};
  for (int j = 0; j < 4; ++j) {
    if (first + j < n_in) x[j] = row[first + j];
  }
  return {{x[0] | x[1] << 16, x[2] | x[3] << 16}};
}

// What a lane has of B for one stretch of 32 inputs, as two products need it, of the row of x with
// its number g = lane / 4. Pairs are those of BlockReader.
KVL_DEVICE void LoadStretchOfRow(const uint16_t* x, int first, int n_in, bool in_fours,
                                 uint32_t (&b)[2][2]) {
  const int i = simt::Lane() % 4;
  for (int half = 0; half < 2; ++half) {
    simt::Words2 quad = {};
    if (x != nullptr) quad = LoadQuad(x, first + 16 * half + 4 * i, n_in, in_fours);
    b[half][0] = simt::PermuteBytes(quad.x[0], quad.x[1], 0x5410);
    b[half][1] = simt::PermuteBytes(quad.x[0], quad.x[1], 0x7632);
  }
}

// Adds products of stretches [begin, end) of a row of weights in blocks. `rows`: where the lane's
// two rows of W begin, of each tile. acc as c of m16n8k16.
template <WeightType kType, int kTiles>
struct StretchLoop {
  using Reader = BlockReader<kType>;
  static constexpr int kStep = Reader::kStretches;

  KVL_DEVICE static void Run(const std::byte* const (&rows)[kTiles][2], const uint16_t* x, int n_in,
                             bool in_fours, int begin, int end, float (&acc)[kTiles][4]) {
    for (int s = begin; s < end; s += kStep) {
      const int64_t at = int64_t{s / kStep} * Reader::kBlockBytes;
#pragma unroll
      for (int c = 0; c < kStep; ++c) {
        uint32_t b[2][2];
        LoadStretchOfRow(x, (s + c) * kStretch, n_in, in_fours, b);
        float sums[2][4] = {};  // of the rows of x, over the halves
        if constexpr (Reader::kHasMin) SumRows(b, sums);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          AddStretch(rows[tile][0] + at, rows[tile][1] + at, c, b, sums, acc[tile]);
        }
      }
    }
  }

 private:
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

// The same of weights of BF16.
template <int kTiles>
struct StretchLoop<WeightType::kBf16, kTiles> {
  static constexpr int kStep = 1;

  KVL_DEVICE static void Run(const std::byte* const (&rows)[kTiles][2], const uint16_t* x, int n_in,
                             bool in_fours, int begin, int end, float (&acc)[kTiles][4]) {
    const int i = simt::Lane() % 4;
    for (int s = begin; s < end; ++s) {
      simt::Words2 b[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = s * kStretch + 16 * half + 4 * i;
        if (x != nullptr) b[half] = LoadQuad(x, first, n_in, in_fours);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int first = s * kStretch + 16 * half + 4 * i;
          simt::Words2 w[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            w[r] = LoadQuad(reinterpret_cast<const uint16_t*>(rows[tile][r]), first, n_in, true);
          }
          const uint32_t a[4] = {w[0].x[0], w[1].x[0], w[0].x[1], w[1].x[1]};
          simt::MmaBf16(acc[tile], a, b[half].x);
        }
      }
    }
  }
};

}  // namespace kvlathe::cuda
