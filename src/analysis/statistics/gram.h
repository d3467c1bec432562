// Methods of the basis axis combine Gram matrices this way: [dim, dim] row-major f64.
#pragma once

#include <span>
#include <vector>

#include "analysis/statistics/statistics.h"

namespace kvlathe {

// X^T X / rows of one head, about zero: covariance + n mean mean^T with n = `rows_per_token`, which
// is above 1 where the covariance is summed over a group of query heads.
std::vector<double> GramOf(const HeadMoments& moments, int64_t head_idx, int dim,
                           int rows_per_token = 1);
// covariance + (mean - from)(mean - from)^T of rows with this covariance [dim, dim] and mean [dim]:
// their second moments about `from`. An empty `from` is zero. Nothing is subtracted from a square.
std::vector<double> MomentsAbout(std::span<const float> from, std::span<const float> mean,
                                 std::vector<double> covariance);
// a X + b Y.
std::vector<double> WeightedSum(double a, const std::vector<double>& x, double b,
                                const std::vector<double>& y);
// The Gram matrix of two blocks of rows below each other; normalised, each scaled to a Frobenius
// norm of 1 first, but for one of zeros.
std::vector<double> StackedGram(const std::vector<double>& x, const std::vector<double>& y,
                                bool is_normalised, int dim);
// The squared Frobenius norm of the rows behind the Gram matrix.
double TraceOf(const std::vector<double>& gram, int dim);
bool AllFinite(const std::vector<double>& values);

std::vector<float> ToFloats(const std::vector<double>& values);
std::vector<float> TransposedSquare(const std::vector<float>& square, int dim);

}  // namespace kvlathe
