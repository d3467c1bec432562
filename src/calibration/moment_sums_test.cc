#include "calibration/moment_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

struct SummedMoments {
  explicit SummedMoments(int n_dims) : mean(n_dims), scatter(n_dims * n_dims) {}
  MomentSums sums() { return {&weight, mean.data(), scatter.data()}; }
  double weight = 0;
  std::vector<double> mean, scatter;
};

// By definition, in two passes over all rows.
SummedMoments LiteralMoments(const std::vector<float>& rows, int n_dims) {
  SummedMoments m(n_dims);
  m.weight = static_cast<double>(rows.size()) / n_dims;
  for (size_t i = 0; i < rows.size(); ++i) m.mean[i % n_dims] += rows[i] / m.weight;
  for (size_t t = 0; t < rows.size(); t += n_dims) {
    for (int i = 0; i < n_dims; ++i) {
      for (int j = 0; j <= i; ++j) {
        m.scatter[i * n_dims + j] += (rows[t + i] - m.mean[i]) * (rows[t + j] - m.mean[j]);
      }
    }
  }
  return m;
}

class MomentAdderTest : public ::testing::TestWithParam<Isa> {};

TEST_P(MomentAdderTest, SlicesAddUpToTheMomentsOfAllRows) {
  Random random(1);
  for (const int n_dims : {3, 16, 40}) {
    SummedMoments found(n_dims);
    MomentAdder adder(GetParam());
    std::vector<float> all;
    // One row alone, none, and slices whose means differ.
    for (const int n_rows : {1, 37, 0, 256, 90}) {
      std::vector<float> rows(n_rows * n_dims);
      for (float& x : rows) x = static_cast<float>(0.1 * n_rows + random.Normal());
      const double trace = adder.Add(rows.data(), n_rows, n_dims, found.sums());
      if (n_rows == 37) {
        const SummedMoments slice = LiteralMoments(rows, n_dims);
        double expected = 0;
        for (int i = 0; i < n_dims; ++i) expected += slice.scatter[i * (n_dims + 1)];
        EXPECT_NEAR(trace, expected, 1e-4 * expected);
      }
      all.insert(all.end(), rows.begin(), rows.end());
    }
    const SummedMoments expected = LiteralMoments(all, n_dims);
    EXPECT_EQ(found.weight, expected.weight);
    for (int i = 0; i < n_dims; ++i) {
      EXPECT_NEAR(found.mean[i], expected.mean[i], 1e-5);
      for (int j = 0; j <= i; ++j) {
        ASSERT_NEAR(found.scatter[i * n_dims + j], expected.scatter[i * n_dims + j], 0.02);
      }
      for (int j = i + 1; j < n_dims; ++j) EXPECT_EQ(found.scatter[i * n_dims + j], 0);
    }
  }
}

// About zero, in F32, squares of 10^5 have steps of 0.008, and their sums larger ones.
TEST_P(MomentAdderTest, SmallDeviationsBesideLargeMeansAreWhatTheyAre) {
  constexpr int kRows = 200, kSlices = 20, kDims = 32;
  Random random(2);
  SummedMoments found(kDims);
  MomentAdder adder(GetParam());
  std::vector<float> all;
  for (int slice = 0; slice < kSlices; ++slice) {
    std::vector<float> rows(kRows * kDims);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] =
          static_cast<float>(350 - 20.0 * static_cast<double>(i % kDims) + 0.02 * random.Normal());
    }
    adder.Add(rows.data(), kRows, kDims, found.sums());
    all.insert(all.end(), rows.begin(), rows.end());
  }
  const SummedMoments expected = LiteralMoments(all, kDims);
  for (int i = 0; i < kDims; ++i) {
    const double of_i = expected.scatter[i * (kDims + 1)];
    EXPECT_NEAR(found.scatter[i * (kDims + 1)], of_i, 1e-3 * of_i);
    for (int j = 0; j < i; ++j) {
      EXPECT_NEAR(found.scatter[i * kDims + j], expected.scatter[i * kDims + j], 1e-3 * of_i);
    }
  }
}

TEST_P(MomentAdderTest, AValueThatIsNotFiniteShows) {
  std::vector<float> rows(5 * 16, 1.0f);
  SummedMoments moments(16);
  MomentAdder adder(GetParam());
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    rows[35] = x;
    EXPECT_FALSE(std::isfinite(adder.Add(rows.data(), 5, 16, moments.sums())));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, MomentAdderTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

TEST(CentreRowsTest, WeightsMakeTheMeanAndScaleWhatIsLeft) {
  constexpr int kRows = 9, kDims = 5, kStride = 8, kTo = 6;
  Random random(3);
  std::vector<float> rows(kRows * kStride), weights(kRows), centred(kRows * kTo, 7.0f);
  for (float& x : rows) x = static_cast<float>(2 + random.Normal());
  for (float& w : weights) w = static_cast<float>(random.Uniform());
  const std::vector<double> mean =
      CentreRows(rows.data(), kRows, kStride, weights.data(), kDims, centred.data(), kTo);
  for (int i = 0; i < kDims; ++i) {
    double sum = 0, all = 0;
    for (int t = 0; t < kRows; ++t) sum += weights[t] * rows[t * kStride + i], all += weights[t];
    EXPECT_NEAR(mean[i], sum / all, 1e-6);
    for (int t = 0; t < kRows; ++t) {
      EXPECT_NEAR(centred[t * kTo + i], std::sqrt(weights[t]) * (rows[t * kStride + i] - sum / all),
                  1e-5);
    }
  }
  for (int t = 0; t < kRows; ++t) EXPECT_EQ(centred[t * kTo + kDims], 7);
}

TEST(ToCovarianceTest, HasTheLowerTriangleOnBothSides) {
  const std::vector<double> scatter = {1, -1, 2, 3};
  std::vector<float> covariance(4);
  ToCovariance(scatter.data(), 0.5, 2, covariance.data());
  EXPECT_EQ(covariance, (std::vector<float>{0.5, 1, 1, 1.5}));
}

}  // namespace
}  // namespace kvlathe
