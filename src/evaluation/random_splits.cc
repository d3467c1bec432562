#include "evaluation/random_splits.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"
#include "kv/basis/bit_ladder.h"

namespace kvlathe {

std::vector<HeadRanks> DrawSplits(int n, int head_dim, double ratio, uint64_t seed) {
  constexpr double kLastOverFirst = 0.02, kVariation = 0.3;  // singular values of a mean head
  Random random(seed);
  std::vector<HeadSpectra> spectra(n);
  std::vector<HeadNoise> noise(n);
  const auto draw = [&](std::vector<double>* values, std::vector<double>* squares) {
    const double rate = std::max(0.2, 1 + kVariation * random.Normal());
    for (int i = 0; i < head_dim; ++i) {
      const double s = std::pow(kLastOverFirst, rate * i / head_dim);
      values->push_back(s);
      squares->push_back(s * s);
    }
  };
  for (int h = 0; h < n; ++h) {
    draw(&spectra[h].qk, &noise[h].qk);
    draw(&spectra[h].v, &noise[h].v);
  }
  RankRequest request{.goal = RankRequest::Goal::kRatio, .value = ratio};
  request.kv_fraction = [&](const std::vector<HeadRanks>& ranks) {
    int64_t bits = 0;
    for (const HeadRanks& r : ranks) bits += r.k_bits.bits_per_token() + r.v_bits.bits_per_token();
    return static_cast<double>(bits) / (int64_t{16} * 2 * head_dim * n);
  };
  StatusOr<RankAllocation> allocation = AllocateBits(spectra, noise, head_dim, request);
  KVL_CHECK(allocation.ok());
  return std::move(allocation->ranks);
}

}  // namespace kvlathe
