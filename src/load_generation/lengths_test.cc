#include "load_generation/lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvlathe {
namespace {

std::vector<int> Draws(const LengthRange& range, int n, uint64_t seed = 1) {
  Random random(seed);
  std::vector<int> draws(static_cast<size_t>(n));
  for (int& draw : draws) draw = DrawLength(range, &random);
  return draws;
}

double MeanOf(const std::vector<int>& values) {
  double sum = 0;
  for (int v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TEST(LengthsTest, EveryTableHasItsMeanInsideItsRange) {
  EXPECT_EQ(PaperWorkloads().size(), 6u);
  for (const PaperWorkload& workload : PaperWorkloads()) {
    for (const LengthRange& range : {workload.input, workload.output}) {
      const std::vector<int> draws = Draws(range, 40000);
      const auto [least, most] = std::ranges::minmax(draws);
      EXPECT_GE(least, range.min) << workload.name;
      EXPECT_LE(most, range.max) << workload.name;
      // The spread is at most 0.19 of the width, so the mean of 40,000 is good to 0.004 of it.
      EXPECT_NEAR(MeanOf(draws), range.mean, 0.004 * (range.max - range.min)) << workload.name;
      EXPECT_GT(most - least, 0.6 * (range.max - range.min)) << workload.name;
    }
  }
}

TEST(LengthsTest, ARangeOfTwoLengthsHasTheMeanToo) {
  EXPECT_NEAR(MeanOf(Draws({10.25, 10, 11}, 40000)), 10.25, 0.01);
  EXPECT_EQ(Draws({5, 5, 5}, 3), (std::vector<int>{5, 5, 5}));
}

TEST(LengthsTest, UniformLengthsReachBothEnds) {
  const std::vector<int> draws = Draws({3, 1, 5, true}, 5000);
  for (int length = 1; length <= 5; ++length) {
    EXPECT_NEAR(std::ranges::count(draws, length) / 5000.0, 0.2, 0.03) << length;
  }
}

TEST(LengthsTest, ScalingKeepsTheShapeAndNeverReachesZero) {
  const LengthRange scaled = Scaled({6300, 1600, 14100}, 0.1);
  EXPECT_EQ(scaled.min, 160);
  EXPECT_EQ(scaled.max, 1410);
  EXPECT_NEAR(scaled.mean, 630, 1e-9);
  const LengthRange tiny = Scaled({37, 16, 87}, 0.001);
  EXPECT_EQ(tiny.min, 1);
  EXPECT_EQ(tiny.max, 1);
  EXPECT_EQ(tiny.mean, 1);
}

TEST(LengthsTest, TheLongestRequestFitsTheContext) {
  for (const PaperWorkload& workload : PaperWorkloads()) {
    const double factor = FactorToFit(workload.input, workload.output, 1000);
    const int longest = Scaled(workload.input, factor).max + Scaled(workload.output, factor).max;
    EXPECT_LE(longest, 1000) << workload.name;
    EXPECT_GE(longest, 900) << workload.name;  // HumanEval and IMDb, which are nearly as long, too
  }
  const PaperWorkload* const imdb = FindPaperWorkload("imdb");
  EXPECT_EQ(FactorToFit(imdb->input, imdb->output, 8192), 1);  // nothing is made longer
  EXPECT_EQ(FindPaperWorkload("wikipedia"), nullptr);
}

}  // namespace
}  // namespace kvlathe
