#include "base/random.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

TEST(Random, RepeatsForASeedAndDiffersBetweenStreams) {
  Random a(7), b(7), c(8), d(7, 1);
  const uint64_t first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
  EXPECT_NE(first, d.Next());
}

TEST(Random, HasTheMomentsOfItsDistributions) {
  Random random(1);
  double sum = 0, squares = 0, uniform = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.Normal();
    sum += x;
    squares += x * x;
    uniform += random.Uniform();
    ASSERT_LT(random.Below(10), 10u);
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.005);
}

}  // namespace
}  // namespace kvlathe
