// Open rows as codes of 8 bits.
#include "kernels/cpu/attend/coded_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/testing/split_bits_problem.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

// Every code lies where a sealed block of 8-bit channels has it, and is the nearest there is.
TEST(CodedRows, AreTheNearestCodesInTheirPlaces) {
  constexpr int kRankK = 48, kRankV = 80, kFirst = 13, kRows = 37, kStride = 96;
  const BlockShape shape = {kRankK, kRankV, DType::kF32, {}, {}, true};
  EXPECT_EQ(BlockBytes(shape), 64 * (kRankK + kRankV));
  Buffer block = Buffer::Allocate(BlockBytes(shape), "test").value();
  std::memset(block.data(), 7, block.n_bytes());
  Random random(3);
  std::vector<float> rows(kRows * kStride);
  for (float& x : rows) x = static_cast<float>(3 * random.Normal());
  rows[0] = 1e30f, rows[1] = -9, rows[2] = 7.99f, rows[3] = 0.03124f, rows[4] = 0.03126f;
  AppendParams append = {shape,       block.data(), kFirst,      kRows,
                         rows.data(), kStride,      rows.data(), kStride};
  ASSERT_TRUE(AppendCodedRows(append));
  std::vector<float> k(64 * kRankK), v(64 * kRankV);
  ExpandCodedKeys(block.data(), kRankK, k.data());
  ExpandCodedValues(block.data() + 64 * kRankK, kRankV, v.data());
  for (int t = 0; t < 64; ++t) {
    const bool is_there = t >= kFirst && t < kFirst + kRows;
    const auto want = [&](int c) -> int {
      if (!is_there) return 7;
      const double x = rows[(t - kFirst) * kStride + c];
      return static_cast<int>(std::clamp(std::nearbyint(x * 16), -128.0, 127.0)) + 128;
    };
    for (int c = 0; c < kRankK; ++c) {
      ASSERT_EQ(SplitWindowAt(block.data(), 8, SplitPlaceOf(8, kRankK, true, t, c)), want(c)) << t << ' ' << c;
      ASSERT_NEAR(k[KeyOffset(t, c)], (want(c) - 128) / 16.0f, 1e-6);
      if (want(c) == 128) {
        ASSERT_EQ(k[KeyOffset(t, c)] > 0, t % 2 == 0);
      }
    }
    for (int c = 0; c < kRankV; ++c) {
      ASSERT_EQ(SplitWindowAt(block.data() + 64 * kRankK, 8, SplitPlaceOf(8, kRankV, false, t, c)), want(c));
      ASSERT_NEAR(v[ValueOffset(shape, t, c)], (want(c) - 128) / 16.0f, 1e-6);
      if (want(c) == 128) {
        ASSERT_EQ(v[ValueOffset(shape, t, c)] > 0, t % 2 == 0);
      }
    }
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    rows[(kRows - 1) * kStride + kRankV - 1] = bad;
    EXPECT_FALSE(AppendCodedRows(append));
  }
}

}  // namespace
}  // namespace kvlathe
