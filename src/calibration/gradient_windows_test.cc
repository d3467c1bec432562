#include "calibration/gradient_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvlathe {
namespace {

int64_t TokensOf(const std::vector<GradientWindow>& windows, bool is_held_back) {
  int64_t n = 0;
  for (const GradientWindow& w : windows) n += w.is_held_back == is_held_back ? w.n_tokens : 0;
  return n;
}

TEST(IsHeldBackTest, EveryFourthOrTheLastOfTwoOrThree) {
  EXPECT_FALSE(IsHeldBack(0, 1));
  EXPECT_FALSE(IsHeldBack(0, 2));
  EXPECT_TRUE(IsHeldBack(1, 2));
  EXPECT_TRUE(IsHeldBack(2, 3));
  for (const int64_t n : {4, 5, 21}) {
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(IsHeldBack(i, n), i % 4 == 3);
  }
}

TEST(ChooseGradientWindowsTest, FirstWindowsOfSequencesAllOverTheText) {
  std::vector<int64_t> sequences(20, 2048);
  sequences.push_back(957);
  const std::vector<GradientWindow> windows = ChooseGradientWindows(sequences, 8192);
  EXPECT_EQ(TokensOf(windows, false), 8192);
  EXPECT_EQ(TokensOf(windows, true), 2 * 1024);
  std::set<int64_t> seen;
  for (const GradientWindow& w : windows) {
    EXPECT_EQ(w.begin, 0);
    EXPECT_EQ(w.is_held_back, IsHeldBack(w.sequence_idx, 21));
    EXPECT_TRUE(seen.insert(w.sequence_idx).second);
  }
  EXPECT_LT(*seen.begin(), 4);
  EXPECT_GT(*seen.rbegin(), 16);
}

TEST(ChooseGradientWindowsTest, FewSequencesGiveSecondWindowsAndShortOnesAreWhole) {
  const std::vector<int64_t> few = {2048, 2048, 1500, 2048};
  const std::vector<GradientWindow> windows = ChooseGradientWindows(few, 8192);
  EXPECT_EQ(TokensOf(windows, false), 5 * 1024);  // 476 tokens are too few for one more
  EXPECT_EQ(TokensOf(windows, true), 2048);
  EXPECT_TRUE(std::ranges::all_of(windows, [&](const GradientWindow& w) {
    return w.begin + w.n_tokens <= few[w.sequence_idx];
  }));
  const std::vector<int64_t> one = {70};
  ASSERT_EQ(ChooseGradientWindows(one, 8192).size(), 1u);
  EXPECT_EQ(ChooseGradientWindows(one, 8192)[0].n_tokens, 70);
  EXPECT_TRUE(ChooseGradientWindows({}, 8192).empty());
}

TEST(GradientTokensTest, FallWithTheWeightsOfLargeModels) {
  EXPECT_EQ(GradientTokens(135'000'000), 20480);
  EXPECT_EQ(GradientTokens(int64_t{3} << 28), 10240);
  EXPECT_EQ(GradientTokens(8'000'000'000), 2048);
}

}  // namespace
}  // namespace kvlathe
