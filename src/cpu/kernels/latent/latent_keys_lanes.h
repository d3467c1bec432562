// The products of latents over vectors of the instruction set that a file is compiled for
// (lanes.h).
#pragma once

#include "cpu/kernels/attend/packed_lanes.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/latent/latent_keys_loops.h"

namespace kvlathe {
namespace {

struct LaneKernels {
  static void Expand(const PackedRunView& run, const std::byte* block, int block_idx,
                     float* values) {
    ExpandSealedBlock(run, block, block_idx, values);
  }
  template <typename Row>
  static void AddProducts(const Row* a, const Row* b, const float* latents, int rank,
                          float (*sums)[kBlockSize]) {
    // Eight sums hide the latency of their additions.
    constexpr int kCols = 4;
    for (int first = 0; first < kBlockSize; first += kCols * kLanes) {
      Vec x[kCols], y[kCols];
      Unroll<kCols>([&](auto c) {
        x[c.value] = Load(sums[0] + first + kLanes * c.value);
        y[c.value] = Load(sums[1] + first + kLanes * c.value);
      });
      const float* line = latents + first;
      for (int r = 0; r < rank; ++r, line += kBlockSize) {
        const Vec weight_x = Set1(WideValue(a[r])), weight_y = Set1(WideValue(b[r]));
        Unroll<kCols>([&](auto c) {
          const Vec tokens = Load(line + kLanes * c.value);
          x[c.value] = Fma(weight_x, tokens, x[c.value]);
          y[c.value] = Fma(weight_y, tokens, y[c.value]);
        });
      }
      Unroll<kCols>([&](auto c) {
        Store(sums[0] + first + kLanes * c.value, x[c.value]);
        Store(sums[1] + first + kLanes * c.value, y[c.value]);
      });
    }
  }
  static void StoreRows(const float* from, int64_t n, float* to) {
    __builtin_memcpy(to, from, n * sizeof(float));
  }
  static void StoreRows(const float* from, int64_t n, uint16_t* to) {
    for (int64_t i = 0; i < n; i += kLanes) StoreFirstBf16(to + i, kLanes, Load(from + i));
  }
};

}  // namespace
}  // namespace kvlathe
