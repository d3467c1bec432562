#include "analysis/statistics/probes.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

std::vector<int> ProbeRanks(int head_dim) {
  std::vector<int> ranks;
  for (int cut = 1; cut <= kProbeCuts; ++cut) {
    const int rank = head_dim * cut / (kProbeCuts + 1) / 16 * 16;
    ranks.push_back(std::min(std::max(rank, 16), head_dim));
  }
  return ranks;
}

double SumOfSquares(const std::vector<double>& values, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += values[i] * values[i];
  return sum;
}

std::vector<double> ScaledToProbes(std::vector<double> singular_values,
                                   const std::vector<int>& ranks, const float* kl) {
  double lost = 0, scale = 1;  // KL and its scale beyond the last segment
  int end = static_cast<int>(singular_values.size());
  for (int cut = static_cast<int>(ranks.size()) - 1; cut >= 0; --cut) {
    const int begin = ranks[cut];
    const double squares = SumOfSquares(singular_values, begin, end);
    if (squares > 0 && kl[cut] > lost) {
      scale = std::sqrt((kl[cut] - lost) / squares);
      lost = kl[cut];
    }
    for (int i = begin; i < end; ++i) singular_values[i] *= scale;
    end = begin;
  }
  for (int i = 0; i < end; ++i) singular_values[i] *= scale;
  return singular_values;
}

}  // namespace kvlathe
