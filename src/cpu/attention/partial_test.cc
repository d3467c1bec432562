#include "cpu/attention/partial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kRows = 5;
constexpr int kRankV = 48;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct OwnedPartial {
  OwnedPartial() : memory(PartialFloats(kRows, kRankV)) {
    for (int row = 0; row < kRows; ++row) view().row_max[row] = kMinusInf;
  }
  PartialRows view() { return PartialAt(memory.data(), kRows, kRankV); }
  std::vector<float> memory;
};

// Scores far apart in size, so that a merge without the maximum would overflow.
OwnedPartial RandomPartial(uint64_t seed) {
  Random random(seed);
  OwnedPartial partial;
  for (int row = 0; row < kRows; ++row) {
    partial.view().row_max[row] = static_cast<float>(100 * random.Normal());
    partial.view().row_sum[row] = static_cast<float>(1 + 10 * random.Uniform());
    for (int r = 0; r < kRankV; ++r) {
      partial.view().o[row * kRankV + r] = static_cast<float>(random.Normal());
    }
  }
  return partial;
}

OwnedPartial Merged(OwnedPartial a, OwnedPartial b) {
  MergePartial(b.view(), kRows, kRankV, a.view());
  return a;
}

std::vector<float> Finished(OwnedPartial partial) {
  std::vector<float> out(kRows * kRankV, 99.0f);
  FinishRows(partial.view(), kRows, kRankV, DType::kF32, out.data());
  return out;
}

void ExpectClose(OwnedPartial a, OwnedPartial b) {
  const std::vector<float> out_a = Finished(a), out_b = Finished(b);
  for (size_t i = 0; i < out_a.size(); ++i) EXPECT_NEAR(out_a[i], out_b[i], 2e-6) << i;
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(a.view().row_max[row], b.view().row_max[row]);
    EXPECT_NEAR(a.view().row_sum[row], b.view().row_sum[row], 1e-5);
  }
}

TEST(PartialTest, MergeIsCommutative) {
  ExpectClose(Merged(RandomPartial(1), RandomPartial(2)),
              Merged(RandomPartial(2), RandomPartial(1)));
}

TEST(PartialTest, MergeIsAssociative) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const OwnedPartial a = RandomPartial(3 * seed), b = RandomPartial(3 * seed + 1),
                       c = RandomPartial(3 * seed + 2);
    ExpectClose(Merged(Merged(a, b), c), Merged(a, Merged(b, c)));
  }
}

TEST(PartialTest, EmptyPartialIsNeutralOnBothSides) {
  const OwnedPartial a = RandomPartial(7);
  EXPECT_EQ(Merged(a, OwnedPartial()).memory, a.memory);
  EXPECT_EQ(Merged(OwnedPartial(), a).memory, a.memory);
}

TEST(PartialTest, TwoEmptyPartialsStayEmptyAndFinishAsZeros) {
  OwnedPartial empty = Merged(OwnedPartial(), OwnedPartial());
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(empty.view().row_max[row], kMinusInf);
    EXPECT_EQ(empty.view().row_sum[row], 0);
  }
  EXPECT_EQ(Finished(empty), std::vector<float>(kRows * kRankV, 0.0f));
}

TEST(PartialTest, MergeEqualsSoftmaxOverTheUnion) {
  // Entry j has score scores[j] and value scores[j] in every dimension.
  const std::vector<double> scores = {-3, 0.5, 80, 79, -200, 78.5};
  const auto over = [&](size_t begin, size_t end) {
    OwnedPartial partial;
    for (int row = 0; row < kRows; ++row) {
      double row_max = kMinusInf, row_sum = 0, o = 0;
      for (size_t j = begin; j < end; ++j) row_max = std::max(row_max, scores[j]);
      for (size_t j = begin; j < end; ++j) {
        row_sum += std::exp(scores[j] - row_max);
        o += std::exp(scores[j] - row_max) * scores[j];
      }
      partial.view().row_max[row] = static_cast<float>(row_max);
      partial.view().row_sum[row] = static_cast<float>(row_sum);
      for (int r = 0; r < kRankV; ++r) partial.view().o[row * kRankV + r] = static_cast<float>(o);
    }
    return partial;
  };
  const float want = Finished(over(0, scores.size()))[0];
  for (size_t cut = 1; cut < scores.size(); ++cut) {
    EXPECT_NEAR(Finished(Merged(over(0, cut), over(cut, scores.size())))[0], want, 1e-4) << cut;
  }
}

TEST(PartialTest, FinishRoundsToBf16Once) {
  OwnedPartial partial = RandomPartial(9);
  std::vector<Bf16> out(kRows * kRankV);
  FinishRows(partial.view(), kRows, kRankV, DType::kBf16, out.data());
  const std::vector<float> exact = Finished(partial);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(ToFloat(out[i]), ToFloat(ToBf16(exact[i])));
}

}  // namespace
}  // namespace kvlathe
