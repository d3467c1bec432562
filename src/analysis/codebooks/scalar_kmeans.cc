#include "analysis/codebooks/scalar_kmeans.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace kvlathe {
namespace {

// Points that have weight, and the cost of one cluster of any stretch of them.
class Stretches {
 public:
  Stretches(std::span<const double> points, std::span<const double> weights) {
    Sums sums;
    sums_.push_back(sums);
    for (size_t i = 0; i < points.size(); ++i) {
      if (weights[i] == 0) continue;
      sums.weight += weights[i];
      sums.first += weights[i] * points[i];
      sums.second += weights[i] * points[i] * points[i];
      sums_.push_back(sums);
    }
  }
  int n_points() const { return static_cast<int>(sums_.size()) - 1; }
  // Of points [begin, end), not empty.
  double Mean(int begin, int end) const {
    return (sums_[end].first - sums_[begin].first) / (sums_[end].weight - sums_[begin].weight);
  }
  double Cost(int begin, int end) const {
    const double first = sums_[end].first - sums_[begin].first;
    const double cost = sums_[end].second - sums_[begin].second - first * Mean(begin, end);
    return std::max(cost, 0.0);
  }

 private:
  struct Sums {
    double weight = 0, first = 0, second = 0;
  };
  std::vector<Sums> sums_;  // of the points before
};

// The best split of every prefix into one cluster more than `before` has. The start of the last
// cluster never moves left as the prefix grows, which halves the search at every step.
struct Level {
  const Stretches& stretches;
  const std::vector<double>& before;  // costs of prefixes
  std::vector<double>& costs;
  std::vector<int>& starts;  // of the last cluster

  void Solve(int begin, int end, int first_start, int last_start) {
    if (begin >= end) return;
    const int n = (begin + end) / 2;
    costs[n] = std::numeric_limits<double>::infinity();
    for (int start = first_start; start <= std::min(last_start, n - 1); ++start) {
      const double cost = before[start] + stretches.Cost(start, n);
      if (cost >= costs[n]) continue;
      costs[n] = cost;
      starts[n] = start;
    }
    Solve(begin, n, first_start, starts[n]);
    Solve(n + 1, end, starts[n], last_start);
  }
};

}  // namespace

std::vector<double> FitCentroids(std::span<const double> points, std::span<const double> weights,
                                 int k) {
  KVL_CHECK(!points.empty() && points.size() == weights.size() && k >= 1);
  const Stretches stretches(points, weights);
  const int n = stretches.n_points(), n_clusters = std::min(k, n);
  std::vector<double> centroids(k);
  if (n == 0) {
    const double step = (points.back() - points.front()) / k;
    for (int i = 0; i < k; ++i) centroids[i] = points.front() + (i + 0.5) * step;
    return centroids;
  }
  std::vector<double> before(n + 1), costs(n + 1);
  for (int i = 1; i <= n; ++i) before[i] = stretches.Cost(0, i);
  std::vector<std::vector<int>> starts(n_clusters, std::vector<int>(n + 1));
  for (int c = 1; c < n_clusters; ++c) {
    // A prefix of c + 1 points or more has that many clusters, none empty.
    Level{stretches, before, costs, starts[c]}.Solve(c + 1, n + 1, c, n - 1);
    before.swap(costs);
  }
  for (int c = n_clusters - 1, end = n; c >= 0; --c) {
    const int start = starts[c][end];
    centroids[c] = stretches.Mean(start, end);
    end = start;
  }
  std::fill(centroids.begin() + n_clusters, centroids.end(), centroids[n_clusters - 1]);
  return centroids;
}

}  // namespace kvlathe
