#include "evaluation/kl_tail.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace kvlathe {
namespace {

// Tokens of KL 1 to 2000 in any order, in two windows.
TEST(KlTail, QuantilesAreThoseOfAllTokensWhateverTheirWindow) {
  std::vector<float> kl(2000);
  for (size_t i = 0; i < kl.size(); ++i) kl[i] = static_cast<float>(i + 1);
  Random random(4);
  for (size_t i = kl.size() - 1; i > 0; --i) std::swap(kl[i], kl[random.Below(i + 1)]);
  std::vector<WindowScores> windows(2);
  windows[0].kl.assign(kl.begin(), kl.begin() + 700);
  windows[1].kl.assign(kl.begin() + 700, kl.end());
  const KlTail tail = TailOf(windows);
  EXPECT_EQ(tail.median, 1000);
  EXPECT_EQ(tail.p99, 1980);
  EXPECT_EQ(tail.p999, 1998);
}

TEST(KlTail, TheWorstWindowIsThatOfMeans) {
  // One token is far off in the first window, all are a little off in the second.
  const std::vector<WindowScores> windows = {
      {.kl = {0, 0, 0, 0, 0, 0, 0, 4}, .n_agree = 4}, {.kl = {1, 1, 1, 1}, .n_agree = 3}, {}};
  const KlTail tail = TailOf(windows);
  EXPECT_EQ(tail.worst_window, 1);
  EXPECT_EQ(tail.worst_window_top1, 0.5);
  EXPECT_EQ(tail.median, 0);
  EXPECT_EQ(tail.p99, 4);
}

TEST(KlTail, OfOneTokenAllAreItsKl) {
  const std::vector<WindowScores> one = {{.kl = {0.5f}, .n_agree = 0}};
  const KlTail tail = TailOf(one);
  EXPECT_EQ(tail.median, 0.5);
  EXPECT_EQ(tail.p999, 0.5);
  EXPECT_EQ(tail.worst_window_top1, 0);
  EXPECT_EQ(TailOf({}).worst_window_top1, 1);
}

}  // namespace
}  // namespace kvlathe
