// The k-th largest of numbers by halving the interval of its bits: whatever the numbers, as many
// rounds as a number has bits.
#pragma once

#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

// The bits of a value as an integer in the order of the values; both zeros are 0. Halves have no
// lower bits.
KVL_DEVICE int32_t OrderedKey(float x, int n_lower_bits) {
  const int32_t bits = std::bit_cast<int32_t>(x) >> n_lower_bits;
  const int32_t key = bits ^ ((bits >> 31) & (0x7fffffff >> n_lower_bits));
  return key == -1 ? 0 : key;
}
KVL_DEVICE float ValueOf(int64_t key, int n_lower_bits) {
  const auto of_key = static_cast<int32_t>(key);
  const int32_t bits = of_key < 0 ? of_key ^ (0x7fffffff >> n_lower_bits) : of_key;
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << n_lower_bits);
}

// The largest key that at least `rank` keys reach, by halving the interval [low, high); n_low and
// n_high keys reach its ends.
struct Bisection {
  int rank;
  int64_t low, high;
  int n_low, n_high;

  KVL_DEVICE int64_t middle() const { return low + (high - low) / 2; }
  KVL_DEVICE void Narrow(int n_reaching) {
    if (n_reaching >= rank) {
      low = middle(), n_low = n_reaching;
    } else {
      high = middle(), n_high = n_reaching;
    }
  }
};

}  // namespace kvlathe::cuda
