// This k-means of one dimension is exact.
#pragma once

#include <span>
#include <vector>

namespace kvlathe {

// The k centroids, ascending, that minimise the sum of weight * (x - nearest centroid)^2 over
// points that ascend. Weights are at least 0. Where fewer than k points have weight, the last one
// repeats; where none has, centroids are spread evenly over the points. n log n per centroid.
std::vector<double> FitCentroids(std::span<const double> points, std::span<const double> weights,
                                 int k);

}  // namespace kvlathe
