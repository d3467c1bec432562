#include "kv/quantizer/codebooks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/codebooks/codebook_fit.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kRows = 4000, kHeads = 2, kDim = 32;

// K of head g has mean g + i / 8 and deviation 1 + i / 4 in channel i, V deviation 1; queries see
// all channels alike but for the first half of head 0, which they do not see.
CalibrationStatistics NormalStatistics() {
  const StatisticsShape shape{1, 4, kHeads, kDim};
  CalibrationStatistics s = MakeStatistics(shape);
  s.k_pre_histograms = s.v_histograms = ChannelHistograms(kHeads * kDim);
  Random random(3);
  for (int g = 0; g < kHeads; ++g) {
    std::vector<float> k(kRows * kDim), v(k.size());
    for (int t = 0; t < kRows; ++t) {
      for (int i = 0; i < kDim; ++i) {
        k[t * kDim + i] = static_cast<float>(g + i / 8.0 + (1 + i / 4.0) * random.Normal());
        v[t * kDim + i] = static_cast<float>(random.Normal());
      }
    }
    s.k_pre_histograms.Add(k.data(), kRows, g * kDim, kDim);
    s.v_histograms.Add(v.data(), kRows, g * kDim, kDim);
    for (int i = 0; i < kDim; ++i) {
      const int64_t at = (int64_t{g} * kDim + i) * kDim + i;
      s.q_post.covariance[at] = g == 0 && i % 16 < 8 ? 0 : 1;
      s.k_post.mean[g * kDim + i] = 2;
      s.k_post.covariance[at] = 1;
      s.v.covariance[at] = 1;
    }
  }
  return s;
}

// Lloyd's iteration for a normal distribution that is cut where 1% lies outside and scaled to
// [-1, 1].
std::vector<double> CentroidsOfCutNormal(int n) {
  std::vector<double> centroids(n);
  for (int i = 0; i < n; ++i) centroids[i] = (2.0 * i + 1) / n - 1;
  for (int loop = 0; loop < 500; ++loop) {
    std::vector<double> sums(n), weights(n);
    for (double x = -1; x <= 1; x += 1e-3) {
      int nearest = 0;
      for (int i = 1; i < n; ++i) {
        if (std::abs(x - centroids[i]) < std::abs(x - centroids[nearest])) nearest = i;
      }
      const double weight = std::exp(-2.5758 * 2.5758 * x * x / 2);
      sums[nearest] += weight * x, weights[nearest] += weight;
    }
    for (int i = 0; i < n; ++i) centroids[i] = sums[i] / weights[i];
  }
  return centroids;
}

TEST(FitCodebooks, RangesAreTheQuantilesOfChannelsBeforeRope) {
  const CalibrationStatistics statistics = NormalStatistics();
  const ModelCodebooks codebooks =
      FitCodebooks({.statistics = &statistics, .rope_dim = kDim, .bits = 3, .outliers = 0.01});
  ASSERT_EQ(codebooks.size(), 1u);
  for (int g = 0; g < kHeads; ++g) {
    const std::vector<float>& scales = codebooks[0].key_scales[g];
    ASSERT_EQ(scales.size(), size_t{2 * kDim});
    for (int i = 0; i < kDim; ++i) {
      const double deviation = 1 + i / 4.0;
      EXPECT_NEAR(scales[i], 2.576 * deviation, 0.3 * deviation);
      EXPECT_NEAR(scales[kDim + i], g + i / 8.0, 0.3 * deviation);
    }
  }
  EXPECT_EQ(codebooks[0].k.n_codes, 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(codebooks[0].k.centroids[i], CentroidsOfCutNormal(8)[i], 0.02);
  }
}

TEST(FitCodebooks, TakesMomentsInABasis) {
  const CalibrationStatistics statistics = NormalStatistics();
  ModelBasis basis{1, kHeads, kDim, std::vector<HeadBasis>(kHeads)};
  for (HeadBasis& head : basis.heads) {
    head.rank_k = head.rank_v = 16;
    // Channel r is the sum of channels r and r + 16.
    head.key_basis.assign(kDim * 16, 0.0f);
    for (int i = 0; i < kDim; ++i) head.key_basis[i * 16 + i % 16] = 1;
    head.query_basis = head.value_basis = head.key_basis;
    head.key_offset.assign(kDim, 0.5f);
  }
  const ModelCodebooks codebooks =
      FitCodebooks({.statistics = &statistics, .basis = &basis, .bits = 4, .outliers = 0.01});
  for (const std::vector<float>& scales : codebooks[0].key_scales) {
    ASSERT_EQ(scales.size(), 32u);
    for (int r = 0; r < 16; ++r) {
      // Means add up to 4, of which the basis takes 1; two channels of variance 1 make one of 2.
      EXPECT_NEAR(scales[r], 2.5758 * std::sqrt(2.0), 1e-3);
      EXPECT_NEAR(scales[16 + r], 3, 1e-4);
    }
  }
}

// With gradients, channels that cost nothing have no say in where centroids lie.
TEST(FitCodebooks, ChannelsWeighByTheirFisherInformation) {
  CalibrationStatistics statistics = MakeStatistics({1, 1, 1, 16});
  statistics.k_pre_histograms = statistics.v_histograms = ChannelHistograms(16);
  Random random(9);
  std::vector<float> rows(kRows * 16);
  for (size_t i = 0; i < rows.size(); ++i) {
    // Evenly spread channels, and channels of few large numbers among many small ones.
    const double x = 2 * random.Uniform() - 1;
    const bool is_small = i % 16 >= 8 && random.Uniform() < 0.999;
    rows[i] = static_cast<float>(is_small ? 0.1 * x : x);
  }
  for (int i = 0; i < 16; ++i) rows[i] = 1, rows[16 + i] = -1;  // ranges are alike
  statistics.k_pre_histograms.Add(rows.data(), kRows, 0, 16);
  statistics.v_histograms.Add(rows.data(), kRows, 0, 16);
  statistics.joint.n_tokens = kRows;
  const auto centroids_of = [&](int first) {
    for (JointMoments* moments : {&statistics.joint.k_pre, &statistics.joint.v}) {
      for (int i = 0; i < 16; ++i) moments->fisher[i * 16 + i] = i / 8 == first / 8 ? 1 : 0;
    }
    return FitCodebooks({.statistics = &statistics, .rope_dim = 16, .bits = 3})[0];
  };
  const LayerCodebooks even = centroids_of(0), peaked = centroids_of(8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(even.k.centroids[i], (2 * i + 1) / 8.0 - 1, 0.03) << i;
    EXPECT_NEAR(even.v.centroids[i], (2 * i + 1) / 8.0 - 1, 0.15) << i;  // a token's range varies
  }
  // Those of the other channels gather around 0.
  EXPECT_LT(std::abs(peaked.k.centroids[4]), 0.06);
  EXPECT_LT(std::abs(peaked.v.centroids[4]), 0.06);
}

TEST(FitCodebooks, ConstantChannelsAndNoOutliers) {
  CalibrationStatistics statistics = MakeStatistics({1, 1, 1, 16});
  statistics.k_pre_histograms = statistics.v_histograms = ChannelHistograms(16);
  const std::vector<float> rows(10 * 16, 1.5f);
  statistics.k_pre_histograms.Add(rows.data(), 10, 0, 16);
  statistics.v_histograms.Add(rows.data(), 10, 0, 16);
  for (const int bits : {2, 3, 4}) {
    const ModelCodebooks codebooks = FitCodebooks({.statistics = &statistics, .bits = bits});
    for (int i = 0; i < 16; ++i) {
      EXPECT_GT(codebooks[0].key_scales[0][i], 0);
      EXPECT_FLOAT_EQ(codebooks[0].key_scales[0][16 + i], 1.5);
    }
    for (const Codebook* book : {&codebooks[0].k, &codebooks[0].v}) {
      EXPECT_TRUE(std::is_sorted(book->centroids.begin(), book->centroids.begin() + (1 << bits)));
      for (const float c : book->centroids) EXPECT_LE(std::abs(c), 1);
    }
  }
}

// Literally: codes by the nearest centroid of the plain fit, moments of what they stand for.
TEST(QuotientHistogram, MatchedMomentsAreThoseOfTheNumbers) {
  Random random(5);
  QuotientHistogram histogram;
  std::vector<double> numbers;
  for (int i = 0; i < 20000; ++i) {
    const double x = std::clamp(0.3 * random.Normal() + 0.2, -1.0, 1.0);
    numbers.push_back(x);
    histogram.Add(x, 1 + x * x);
  }
  const Codebook plain = histogram.Fit(2, false), matched = histogram.Fit(2, true);
  EXPECT_EQ(plain.boundaries, matched.boundaries);
  double mean = 0, square = 0, coded_mean = 0, coded_square = 0, plain_square = 0;
  for (const double x : numbers) {
    int nearest = 0;
    for (int i = 1; i < 4; ++i) {
      if (std::abs(x - plain.centroids[i]) < std::abs(x - plain.centroids[nearest])) nearest = i;
    }
    mean += x / 20000, square += x * x / 20000;
    const double y = matched.centroids[nearest], z = plain.centroids[nearest];
    coded_mean += y / 20000, coded_square += y * y / 20000, plain_square += z * z / 20000;
  }
  EXPECT_NEAR(coded_mean, mean, 1e-3);
  EXPECT_NEAR(coded_square, square, 1e-3);
  EXPECT_GT(std::abs(plain_square - square), 3e-3);
}

}  // namespace
}  // namespace kvlathe
