#include "analysis/codebooks/scalar_kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

double CostOf(const std::vector<double>& points, const std::vector<double>& weights,
              const std::vector<double>& centroids) {
  double cost = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    double nearest = std::numeric_limits<double>::infinity();
    for (const double c : centroids) nearest = std::min(nearest, std::abs(points[i] - c));
    cost += weights[i] * nearest * nearest;
  }
  return cost;
}

// The least cost over all ways to cut points [begin, n) into at most k stretches.
double LeastCost(const std::vector<double>& points, const std::vector<double>& weights,
                 size_t begin, int k) {
  if (begin == points.size()) return 0;
  if (k == 0) return std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (size_t end = begin + 1; end <= points.size(); ++end) {
    double weight = 0, sum = 0, cost = 0;
    for (size_t i = begin; i < end; ++i) weight += weights[i], sum += weights[i] * points[i];
    for (size_t i = begin; i < end && weight > 0; ++i) {
      cost += weights[i] * (points[i] - sum / weight) * (points[i] - sum / weight);
    }
    least = std::min(least, cost + LeastCost(points, weights, end, k - 1));
  }
  return least;
}

TEST(FitCentroids, CostIsTheLeastOfAllPartitions) {
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const int n = 1 + static_cast<int>(random.Below(11)), k = 1 + static_cast<int>(random.Below(4));
    std::vector<double> points, weights;
    for (int j = 0; j < n; ++j) {
      points.push_back((j == 0 ? 0 : points.back()) + random.Uniform());
      weights.push_back(random.Below(4) == 0 ? 0 : random.Uniform());
    }
    const std::vector<double> centroids = FitCentroids(points, weights, k);
    ASSERT_EQ(centroids.size(), static_cast<size_t>(k));
    EXPECT_TRUE(std::is_sorted(centroids.begin(), centroids.end()));
    EXPECT_NEAR(CostOf(points, weights, centroids), LeastCost(points, weights, 0, k), 1e-12);
  }
}

// Max (1960): the best quantiser of a normal distribution.
TEST(FitCentroids, FindsTheBestQuantiserOfANormal) {
  std::vector<double> points, weights;
  for (double x = -6; x < 6; x += 0.002) {
    points.push_back(x);
    weights.push_back(std::exp(-x * x / 2));
  }
  const std::vector<double> four = FitCentroids(points, weights, 4);
  EXPECT_NEAR(four[2], 0.4528, 2e-3);
  EXPECT_NEAR(four[3], 1.510, 2e-3);
  EXPECT_NEAR(FitCentroids(points, weights, 16)[15], 2.733, 2e-3);
}

TEST(FitCentroids, FewPointsRepeatAndNoneSpread) {
  EXPECT_EQ(FitCentroids(std::vector{1.0, 2.0, 3.0}, std::vector{0.0, 1.0, 2.0}, 4),
            (std::vector{2.0, 3.0, 3.0, 3.0}));
  EXPECT_EQ(FitCentroids(std::vector{0.0, 4.0}, std::vector{0.0, 0.0}, 2), (std::vector{1.0, 3.0}));
}

}  // namespace
}  // namespace kvlathe
