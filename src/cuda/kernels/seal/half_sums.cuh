// Sums in the order in which the kernels of the CPU take them: sixteen lanes each sum every
// sixteenth number. Here the lanes are those of half a warp, and all lanes of the warp call
// together.
#pragma once

#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

inline constexpr int kHalf = 16;

// The sum over half a warp: lanes that are 8 apart, then 4, 2 and 1.
KVL_DEVICE float SumOfHalf(float x) {
  for (int step = kHalf / 2; step > 0; step /= 2) x += simt::ShuffleXor(x, step);
  return x;
}

KVL_DEVICE double ShuffleDouble(double x, int lane) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const uint32_t low = simt::Shuffle(static_cast<uint32_t>(bits), lane);
  const uint32_t high = simt::Shuffle(static_cast<uint32_t>(bits >> 32), lane);
  return std::bit_cast<double>(uint64_t{high} << 32 | low);
}

// The dot of n numbers in F64; each half of the warp may have its own. Lanes are summed in order.
KVL_DEVICE double DotOfHalf(const float* a, const float* b, int n) {
  double of_lane = 0;
  for (int i = simt::Lane() % kHalf; i < n; i += kHalf) {
    of_lane += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (int i = 0; i < kHalf; ++i) sum += ShuffleDouble(of_lane, simt::Lane() / kHalf * kHalf + i);
  return sum;
}

}  // namespace kvlathe::cuda
