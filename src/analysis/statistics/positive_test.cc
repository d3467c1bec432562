#include "analysis/statistics/positive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kSide = 64;

// sum of x x^T over n rows, rounded to F32 as files are.
std::vector<double> DrawnSquares(int n, double size_of_first) {
  Random random(1);
  std::vector<double> squares(kSide * kSide);
  for (int t = 0; t < n; ++t) {
    std::vector<double> row(kSide);
    for (int i = 0; i < kSide; ++i) row[i] = (i < 4 ? size_of_first : 1) * random.Normal();
    for (int i = 0; i < kSide * kSide; ++i) squares[i] += row[i / kSide] * row[i % kSide];
  }
  for (double& x : squares) x = static_cast<float>(x);
  return squares;
}

TEST(IsSumOfSquaresTest, HoldsOfRowsUpToRounding) {
  EXPECT_TRUE(IsSumOfSquares(std::vector<double>(kSide * kSide), kSide));
  for (const int n : {1, 30, 500}) {  // 1 and 30 rows leave directions of nothing
    for (const double size : {1.0, 300.0}) {
      EXPECT_TRUE(IsSumOfSquares(DrawnSquares(n, size), kSide)) << n << ' ' << size;
    }
  }
}

TEST(IsSumOfSquaresTest, FailsWhereADirectionHasLessThanNothing) {
  std::vector<double> squares = DrawnSquares(500, 1);
  squares[10 * (kSide + 1)] = -1;
  EXPECT_FALSE(IsSumOfSquares(squares, kSide));
}

// What squares about zero leave in F32, less those of the mean.
TEST(IsSumOfSquaresTest, FailsWhereMomentsCancelled) {
  Random random(2);
  std::vector<float> sums(kSide * kSide);
  std::vector<double> mean(kSide);
  constexpr int kRows = 2000;
  for (int t = 0; t < kRows; ++t) {
    std::vector<float> row(kSide);
    for (int i = 0; i < kSide; ++i) {
      row[i] = static_cast<float>(350 + 10 * (i % 5) + 0.02 * random.Normal());
      mean[i] += row[i] / double{kRows};
    }
    for (int i = 0; i < kSide * kSide; ++i) sums[i] += row[i / kSide] * row[i % kSide];
  }
  std::vector<double> squares(kSide * kSide);
  for (int i = 0; i < kSide * kSide; ++i) {
    squares[i] = sums[i] / double{kRows} - mean[i / kSide] * mean[i % kSide];
  }
  EXPECT_FALSE(IsSumOfSquares(squares, kSide));
}

TEST(CheckCovariancesTest, NamesLayerAndRows) {
  ThreadPool pool(2);
  CalibrationStatistics statistics = MakeStatistics({3, 4, 2, 16});
  EXPECT_TRUE(CheckCovariances(statistics, &pool).ok());
  statistics.v.covariance[(2 * 2 + 1) * 256 + 17] = -1;
  statistics.held_back.k.weighed_covariance[1 * 32 * 32 + 33] = -1;
  const Status status = CheckCovariances(statistics, &pool);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(status),
              ::testing::HasSubstr("layer 1: keys after RoPE by their gradients have a negative"));
  EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("kivi"));
}

}  // namespace
}  // namespace kvlathe
