#include "analysis/bases/report.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

TEST(Concentration, IsTheShareOfTheLargestQuarter) {
  EXPECT_DOUBLE_EQ(Concentration(std::vector<double>(64, 3.0)), 0.25);
  EXPECT_DOUBLE_EQ(Concentration({5, 3, 1, 1, 0, 0, 0, 0}), 0.8);
  EXPECT_DOUBLE_EQ(Concentration({2, 0, 0, 0, 0}), 1);
  EXPECT_DOUBLE_EQ(Concentration({0, 0, 0, 0}), 1);
}

}  // namespace
}  // namespace kvlathe
