// Open rows as codes of 8 bits.
#include "cpu/kernels/attend/coded_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

// Every code lies where a sealed block of 8-bit channels has it, and is the nearest there is.
TEST(CodedRows, AreTheNearestCodesInTheirPlaces) {
  constexpr int kRankK = 48, kRankV = kMaxRowRank, kFirst = 13, kRows = 37, kStride = 528;
  const BlockShape shape = {kRankK, kRankV, DType::kF32};
  EXPECT_EQ(OpenBlockBytes(SplitBitsCodec{.codes_open_rows = true}, shape),
            64 * (kRankK + kRankV + 2));
  Buffer block = Buffer::Allocate(kBlockSize * CodedTokenBytes(shape), "test").value();
  std::memset(block.data(), 7, block.n_bytes());
  Random random(3);
  std::vector<float> rows(kRows * kStride);
  for (float& x : rows) x = static_cast<float>(3 * random.Normal());
  for (int t = 0; t < kRows; ++t) {  // tokens of all sizes, and one of zeros
    for (int c = 0; c < kStride; ++c) {
      rows[t * kStride + c] *= t == 5 ? 0 : static_cast<float>(std::exp2(t % 9 - 4));
    }
  }
  rows[0] = 1e30f;
  AppendParams append = {shape,       block.data(), kFirst,      kRows,
                         rows.data(), kStride,      rows.data(), kStride};
  ASSERT_TRUE(AppendCodedRows(append));
  std::vector<float> k(64 * kRankK), v(64 * kRankV);
  const std::byte* const scales = block.data() + 64 * (kRankK + kRankV);
  ExpandCodedKeys(block.data(), kRankK, scales, k.data());
  ExpandCodedValues(block.data() + 64 * kRankK, kRankV, scales + 64, v.data());
  for (int t = 0; t < 64; ++t) {
    const bool is_there = t >= kFirst && t < kFirst + kRows;
    const float* const row = rows.data() + (t - kFirst) * kStride;
    // The least scale that reaches all of the row, of those that there are.
    const auto scale_of = [&](int rank) {
      if (!is_there) return 0x1p-11 * (1 + 7 / 16.0);
      double most = 0, scale = 0x1p-11;
      for (int c = 0; c < rank; ++c) most = std::max(most, std::abs(double{row[c]}));
      for (int byte = 0; byte < 256 && scale * 127 / 16 < most; ++byte) {
        scale = std::ldexp(1 + byte % 16 / 16.0, byte / 16 - 11);
      }
      return scale;
    };
    const double scale_k = scale_of(kRankK), scale_v = scale_of(kRankV);
    const auto want = [&](int c, double scale) -> int {
      if (!is_there) return 7;
      return static_cast<int>(std::clamp(std::nearbyint(row[c] / scale * 16), -128.0, 127.0)) + 128;
    };
    for (int c = 0; c < kRankK; ++c) {
      ASSERT_EQ(SplitWindowAt(block.data(), 8, SplitPlaceOf(8, kRankK, true, t, c)),
                want(c, scale_k))
          << t << ' ' << c;
      ASSERT_NEAR(k[KeyOffset(t, c)], (want(c, scale_k) - 128) / 16.0 * scale_k, 2e-6 * scale_k);
      if (want(c, scale_k) == 128) {
        ASSERT_EQ(k[KeyOffset(t, c)] > 0, t % 2 == 0);
      }
    }
    for (int c = 0; c < kRankV; ++c) {
      ASSERT_EQ(SplitWindowAt(block.data() + 64 * kRankK, 8, SplitPlaceOf(8, kRankV, false, t, c)),
                want(c, scale_v));
      ASSERT_NEAR(v[ValueOffset(shape, t, c)], (want(c, scale_v) - 128) / 16.0 * scale_v,
                  2e-6 * scale_v);
      if (want(c, scale_v) == 128) {
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
