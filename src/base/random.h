// Random is a counter-based generator (the SplitMix64 finaliser over a keyed counter): the same
// seed gives the same numbers on every machine and thread count, and a stream can be read at any
// position.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvlathe {

constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : key_(MixBits(seed ^ MixBits(stream))) {}

  uint64_t Next() { return MixBits(key_ + counter_++ * 0x9e3779b97f4a7c15ull); }
  // Uniform in [0, n), n >= 1 (bias below 2^-32 for n < 2^32).
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // Uniform in [0, 1) with 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  // Standard normal (Box-Muller, one value per call).
  double Normal() {
    const double u = 1.0 - Uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * Uniform());
  }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace kvlathe
