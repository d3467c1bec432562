#include "evaluation/bench/random_splits.h"

#include <algorithm>
#include <cmath>

#include "analysis/ranks/bit_ladder.h"
#include "base/check.h"
#include "base/random.h"

namespace kvlathe {

std::vector<int> DrawRanks(int n, int head_dim, double rate, uint64_t seed) {
  constexpr double kVariation = 0.3;
  const int n_ranks = 2 * n;
  if (rate == 0) return std::vector<int>(n_ranks, head_dim);
  const double mean_rank = (1 - rate) * head_dim;
  Random random(seed);
  std::vector<int> ranks(n_ranks);
  int64_t excess = 0;  // in steps of 16
  for (int& rank : ranks) {
    const double drawn = mean_rank * (1 + kVariation * random.Normal());
    rank = std::clamp(static_cast<int>(std::lround(drawn / 16)) * 16, 16, head_dim);
    excess += rank / 16;
  }
  excess -= std::max<int64_t>(n_ranks, std::llround(std::ceil(mean_rank * n_ranks / 16)));
  // A few random ranks move by one step until the mean is right.
  while (excess != 0) {
    int& rank = ranks[random.Below(n_ranks)];
    const int step = excess > 0 ? -16 : 16;
    if (rank + step < 16 || rank + step > head_dim) continue;
    rank += step;
    excess += step / 16;
  }
  return ranks;
}

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

std::vector<HeadRanks> UniformRanks(int n, int head_dim, double rate) {
  const RankLadder ladder = RankLadder::Uniform(n, head_dim, 16);
  return ladder.AllocationAt(ladder.LastLevelWithin(rate)).ranks;
}

}  // namespace kvlathe
