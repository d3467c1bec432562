#include "analysis/statistics/probes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::ElementsAre;

TEST(ProbesTest, CutsAreQuartersInMultiplesOf16) {
  EXPECT_THAT(ProbeRanks(64), ElementsAre(16, 32, 48));
  EXPECT_THAT(ProbeRanks(128), ElementsAre(32, 64, 96));
  EXPECT_THAT(ProbeRanks(80), ElementsAre(16, 32, 48));
  EXPECT_THAT(ProbeRanks(32), ElementsAre(16, 16, 16));
  EXPECT_THAT(ProbeRanks(8), ElementsAre(8, 8, 8));
}

TEST(ProbesTest, SquaresBeyondEachCutAreWhatWasMeasured) {
  const std::vector<double> values = {8, 7, 6, 5, 4, 3, 2, 1};
  const float kl[] = {10, 4, 1};
  const std::vector<double> scaled = ScaledToProbes(values, {2, 4, 6}, kl);
  EXPECT_NEAR(SumOfSquares(scaled, 6, 8), 1, 1e-9);
  EXPECT_NEAR(SumOfSquares(scaled, 4, 8), 4, 1e-6);
  EXPECT_NEAR(SumOfSquares(scaled, 2, 8), 10, 1e-6);
  // Within a segment, and before the first cut as in the segment behind it.
  EXPECT_NEAR(scaled[2] / scaled[3], 6.0 / 5, 1e-12);
  EXPECT_NEAR(scaled[0] / scaled[2], 8.0 / 6, 1e-12);
}

TEST(ProbesTest, AHeavierCutNeverCountsLess) {
  const std::vector<double> values = {4, 4, 2, 2};
  const float kl[] = {1, 3};
  const std::vector<double> scaled = ScaledToProbes(values, {1, 2}, kl);
  EXPECT_NEAR(SumOfSquares(scaled, 2, 4), 3, 1e-6);
  EXPECT_GE(scaled[1], 0);
  EXPECT_GE(SumOfSquares(scaled, 1, 4), 3);
}

TEST(ProbesTest, WithoutMeasurementsNothingChanges) {
  const float kl[] = {0, 0, 0};
  EXPECT_THAT(ScaledToProbes({3, 2, 1, 0}, {1, 2, 3}, kl), ElementsAre(3, 2, 1, 0));
}

}  // namespace
}  // namespace kvlathe
