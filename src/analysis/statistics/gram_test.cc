#include "analysis/statistics/gram.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kDim = 5, kTokens = 40, kGroup = 3;

// Rows of a token's group of heads, whose moments are taken as HeadMoments has them.
struct Rows {
  Rows() {
    Random random(1);
    for (int t = 0; t < kTokens * kGroup; ++t) {
      for (int i = 0; i < kDim; ++i) {
        rows.push_back(static_cast<float>(400 * i + (i == 2 ? 0.3 : 1) * random.Normal()));
      }
    }
    std::vector<double> mean(kDim), covariance(kDim * kDim);
    for (size_t i = 0; i < rows.size(); ++i) mean[i % kDim] += rows[i] / (kTokens * kGroup);
    for (size_t t = 0; t < rows.size(); t += kDim) {
      for (int i = 0; i < kDim * kDim; ++i) {
        covariance[i] +=
            (rows[t + i / kDim] - mean[i / kDim]) * (rows[t + i % kDim] - mean[i % kDim]) / kTokens;
      }
    }
    moments = {ToFloats(mean), ToFloats(covariance)};
  }
  // The sum of products of rows less `from`, a token.
  std::vector<double> SumAbout(const std::vector<float>& from) const {
    std::vector<double> sum(kDim * kDim);
    for (size_t t = 0; t < rows.size(); t += kDim) {
      for (int i = 0; i < kDim * kDim; ++i) {
        sum[i] += (double{rows[t + i / kDim]} - from[i / kDim]) *
                  (double{rows[t + i % kDim]} - from[i % kDim]) / kTokens;
      }
    }
    return sum;
  }
  std::vector<float> rows;
  HeadMoments moments;
};

TEST(GramOfTest, HasTheMomentsAboutZeroOfAllRowsOfAToken) {
  const Rows rows;
  const std::vector<double> gram = GramOf(rows.moments, 0, kDim, kGroup);
  const std::vector<double> expected = rows.SumAbout(std::vector<float>(kDim));
  for (size_t i = 0; i < gram.size(); ++i) {
    EXPECT_NEAR(gram[i], expected[i], 1e-6 * (1 + expected[i])) << i;
  }
}

TEST(MomentsAboutTest, KeepWhatRowsVaryByWherePlacesAreFarFromZero) {
  Rows rows;
  for (float& x : rows.moments.covariance) x /= kGroup;
  std::vector<float> from = rows.moments.mean;
  for (int i = 0; i < kDim; ++i) from[i] += 0.1f * static_cast<float>(i);
  const std::vector<double> found = MomentsAbout(
      from, rows.moments.mean, {rows.moments.covariance.begin(), rows.moments.covariance.end()});
  const std::vector<double> expected = rows.SumAbout(from);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i] / kGroup, 1e-3);
  const std::vector<double> about_zero = MomentsAbout(
      {}, rows.moments.mean, {rows.moments.covariance.begin(), rows.moments.covariance.end()});
  const std::vector<double> gram = GramOf(rows.moments, 0, kDim);
  for (size_t i = 0; i < gram.size(); ++i) EXPECT_DOUBLE_EQ(about_zero[i], gram[i]);
}

}  // namespace
}  // namespace kvlathe
