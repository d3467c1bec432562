// What the compiler works out from a table, against plain searches in double.
#include "format/table_codes/code_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvlathe {
namespace {

constexpr NamedTable kUneven({0, 1, 3, 6, 12, 22, 37, 58, 0, -2, -4, -8, -15, -27, -41, -52},
                             0.25f);

// The code nearest to x, given in units; of two equally near ones the even code, of two codes for
// one number the lower.
int NearestCode(const CodeTable& table, double x) {
  int best = 0;
  double nearest = std::numeric_limits<double>::infinity();
  for (int code = 0; code < kTableCodes; ++code) {
    const double distance = std::fabs(x - table.numbers[code]);
    const bool wins_tie = distance == nearest && code % 2 == 0 && best % 2 == 1;
    if (distance < nearest || wins_tie) best = code, nearest = distance;
  }
  return best;
}

int CodeBySteps(const TableSteps& steps, float x) {
  int i = 0;
  while (i + 1 < steps.n && steps.boundaries[i + 1] < x) ++i;
  return static_cast<int>(steps.codes[i]);
}

TEST(CodeTableTest, StepsFindTheNearestNumberAndTiesGoToTheEvenCode) {
  EXPECT_EQ(kUneven.steps.n, 15);  // 0 stands twice
  for (int i = -240; i <= 240; ++i) {
    const float x = 0.25f * static_cast<float>(i);  // numbers, half ways and what lies between
    for (const float near : {x, std::nextafter(x, -1e9f), std::nextafter(x, 1e9f)}) {
      EXPECT_EQ(CodeBySteps(kUneven.steps, near), NearestCode(kUneven, near)) << near;
    }
  }
}

TEST(CodeTableTest, ScalesBringTheLargestValueAmongTheNumbers) {
  EXPECT_EQ(kUneven.steps.max_exponent, 3);  // 58 / 4 = 14.5
  EXPECT_EQ(TableScaleByte(0, 3), 127);
  for (int i = -130; i < 128; ++i) {
    for (const double mantissa : {1.0, 1.25, 1.9}) {
      const auto largest = static_cast<float>(std::ldexp(mantissa, i));
      const int byte = TableScaleByte(largest, 3);
      EXPECT_GE(byte, 1);
      EXPECT_LE(byte, 254);
      if (byte > 1) EXPECT_EQ(byte - 127, std::floor(std::log2(static_cast<double>(largest))) - 3);
      EXPECT_EQ(TableScale(static_cast<uint8_t>(byte)), std::ldexp(1.0f, byte - 127));
    }
  }
}

TEST(CodeTableTest, WordsAreTheNumbers) {
  for (size_t i = 0; i < kUneven.words.size(); ++i) {
    const auto bits = uint32_t{kUneven.words[i]} << 16;
    EXPECT_EQ(std::bit_cast<float>(bits), static_cast<float>(kUneven.numbers[i % kTableCodes]));
  }
}

}  // namespace
}  // namespace kvlathe
