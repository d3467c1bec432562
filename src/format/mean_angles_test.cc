#include "format/mean_angles.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlathe {
namespace {

TEST(MeanAngles, AreThoseOfTokensAroundTheMiddleOfABlock) {
  const std::vector<double> frequencies = {1.0, 0.03, 0};
  const std::vector<float> table = MakeMeanAngles(frequencies, 2);
  const MeanAngles angles(table.data(), 3);
  EXPECT_EQ(angles.step_sin + 3, table.data() + table.size());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(angles.middle_cos[i], std::cos(31.5 * frequencies[i]), 1e-6);
    EXPECT_NEAR(angles.middle_sin[i], std::sin(31.5 * frequencies[i]), 1e-6);
    EXPECT_NEAR(angles.step_cos[i], std::cos(64 * frequencies[i]), 1e-6);
    EXPECT_NEAR(angles.step_sin[i], std::sin(64 * frequencies[i]), 1e-6);
    for (int d = 0; d < kHalfBlock; ++d) {
      const double token = 32 + d;
      EXPECT_NEAR(angles.cos[i * kHalfBlock + d], 2 * std::cos((token - 31.5) * frequencies[i]),
                  1e-6);
      EXPECT_NEAR(angles.sin[i * kHalfBlock + d], 2 * std::sin((token - 31.5) * frequencies[i]),
                  1e-6);
    }
  }
}

}  // namespace
}  // namespace kvlathe
