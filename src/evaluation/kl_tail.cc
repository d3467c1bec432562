#include "evaluation/kl_tail.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlathe {
namespace {

// `sorted` ascends and is not empty.
double QuantileOf(std::span<const float> sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[std::max<int64_t>(1, static_cast<int64_t>(rank)) - 1];
}

}  // namespace

KlTail TailOf(std::span<const WindowScores> windows) {
  KlTail tail;
  std::vector<float> all;
  for (const WindowScores& window : windows) {
    if (window.kl.empty()) continue;
    const auto n = static_cast<double>(window.kl.size());
    const double mean = std::accumulate(window.kl.begin(), window.kl.end(), 0.0) / n;
    tail.worst_window = std::max(tail.worst_window, mean);
    tail.worst_window_top1 =
        std::min(tail.worst_window_top1, static_cast<double>(window.n_agree) / n);
    all.insert(all.end(), window.kl.begin(), window.kl.end());
  }
  if (all.empty()) return tail;
  std::ranges::sort(all);
  tail.median = QuantileOf(all, 0.5);
  tail.p99 = QuantileOf(all, 0.99);
  tail.p999 = QuantileOf(all, 0.999);
  return tail;
}

}  // namespace kvlathe
