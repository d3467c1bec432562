#include "load_generation/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "load_generation/gamma_draw.h"

namespace kvlathe {
namespace {

struct Moments {
  double mean = 0, variation = 0;  // coefficient of variation
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  for (double v : values) moments.mean += v / static_cast<double>(values.size());
  double squares = 0;
  for (double v : values) squares += (v - moments.mean) * (v - moments.mean);
  moments.variation = std::sqrt(squares / static_cast<double>(values.size())) / moments.mean;
  return moments;
}

std::vector<double> GapsOf(const std::vector<double>& times) {
  std::vector<double> gaps(times.size());
  std::adjacent_difference(times.begin(), times.end(), gaps.begin());
  return gaps;
}

TEST(GammaDrawTest, HasTheMeanAndVariationOfItsShape) {
  for (const double shape : {0.25, 1.0, 2.5, 40.0}) {
    Random random(7);
    std::vector<double> draws(60000);
    for (double& draw : draws) draw = DrawGamma(shape, &random);
    const Moments moments = MomentsOf(draws);
    EXPECT_NEAR(moments.mean / shape, 1, 0.02) << shape;
    EXPECT_NEAR(moments.variation * std::sqrt(shape), 1, 0.03) << shape;
  }
}

TEST(GammaDrawTest, BetaIsInsideTheUnitIntervalWithItsMean) {
  Random random(8);
  std::vector<double> draws(60000);
  for (double& draw : draws) {
    draw = DrawBeta(1.5, 4.5, &random);
    ASSERT_GT(draw, 0);
    ASSERT_LT(draw, 1);
  }
  EXPECT_NEAR(MomentsOf(draws).mean, 0.25, 0.005);
}

TEST(ArrivalsTest, TheLastOfNComesAtNOverTheRate) {
  for (const double burstiness : {0.3, 1.0, 4.0}) {
    const std::vector<double> times = ArrivalTimes({2.5, burstiness, 3}, 50);
    ASSERT_EQ(times.size(), 50u);
    EXPECT_NEAR(times.back(), 20, 1e-9);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GT(times.front(), 0);
  }
}

TEST(ArrivalsTest, GapsVaryAsTheBurstinessSays) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const Moments gaps = MomentsOf(GapsOf(ArrivalTimes({8, burstiness, 5}, 40000)));
    EXPECT_NEAR(gaps.mean, 0.125, 1e-6);
    EXPECT_NEAR(gaps.variation, 1 / std::sqrt(burstiness), 0.03 / std::sqrt(burstiness));
  }
}

// Of a Poisson process the counts in equal spans have a variance equal to their mean.
TEST(ArrivalsTest, WithBurstinessOneTheyAreAPoissonProcess) {
  constexpr int kSpans = 4000;
  std::vector<double> counts(kSpans);
  for (const double time : ArrivalTimes({10, 1, 11}, 40000)) {
    counts[std::min<size_t>(kSpans - 1, static_cast<size_t>(time))] += 1;
  }
  const Moments moments = MomentsOf(counts);
  EXPECT_NEAR(moments.mean, 10, 1e-9);
  EXPECT_NEAR(std::pow(moments.variation * moments.mean, 2) / moments.mean, 1, 0.08);
}

TEST(ArrivalsTest, TheSeedDecides) {
  const auto times = [](uint64_t seed) { return ArrivalTimes({1, 1, seed}, 20); };
  EXPECT_EQ(times(4), times(4));
  EXPECT_NE(times(4), times(5));
}

}  // namespace
}  // namespace kvlathe
