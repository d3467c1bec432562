#include "calibration/weight_fisher.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kLayers = 2, kTokens = 37, kHidden = 50, kWidth = 6, kStride = 11;

std::vector<float> Drawn(Random* random, int64_t n) {
  std::vector<float> rows(n);
  for (float& x : rows) x = static_cast<float>(random->Normal());
  return rows;
}

// Literally: the gradient of every element of a matrix, its square, the mean over sequences, the
// root, the mean over elements.
TEST(WeightFisher, IsTheMeanRootOfSquaredGradients) {
  ThreadPool pool(3);
  WeightFisherSums sums(kLayers, kHidden, kWidth, &pool);
  Random random(6);
  std::vector<double> k_squares(kLayers * kWidth * kHidden), v_squares(k_squares.size());
  constexpr int kSequences = 3;
  for (int s = 0; s < kSequences; ++s) {
    for (int l = kLayers - 1; l >= 0; --l) {
      const std::vector<float> x = Drawn(&random, kTokens * kHidden);
      const std::vector<float> k = Drawn(&random, kTokens * kStride);
      const std::vector<float> v = Drawn(&random, kTokens * kWidth);
      sums.Add({.layer_idx = l,
                .n_tokens = kTokens,
                .projections = {
                    .inputs = x.data(), .k = k.data() + 2, .k_stride = kStride, .v = v.data()}});
      for (int i = 0; i < kWidth; ++i) {
        for (int j = 0; j < kHidden; ++j) {
          double of_k = 0, of_v = 0;
          for (int t = 0; t < kTokens; ++t) {
            of_k += double{k[t * kStride + 2 + i]} * x[t * kHidden + j];
            of_v += double{v[t * kWidth + i]} * x[t * kHidden + j];
          }
          k_squares[(l * kWidth + i) * kHidden + j] += of_k * of_k;
          v_squares[(l * kWidth + i) * kHidden + j] += of_v * of_v;
        }
      }
    }
  }
  const auto weights = sums.Finish(kSequences);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->k.size(), size_t{kLayers});
  for (int l = 0; l < kLayers; ++l) {
    double k = 0, v = 0;
    for (int i = 0; i < kWidth * kHidden; ++i) {
      k += std::sqrt(k_squares[l * kWidth * kHidden + i] / kSequences) / (kWidth * kHidden);
      v += std::sqrt(v_squares[l * kWidth * kHidden + i] / kSequences) / (kWidth * kHidden);
    }
    EXPECT_NEAR(weights->k[l], k, 1e-4 * k);
    EXPECT_NEAR(weights->v[l], v, 1e-4 * v);
  }
}

TEST(WeightFisher, NamesTheLayerWhoseGradientsAreNotFinite) {
  ThreadPool pool(1);
  WeightFisherSums sums(kLayers, kHidden, kWidth, &pool);
  const std::vector<float> x(kTokens * kHidden, std::numeric_limits<float>::infinity());
  const std::vector<float> rows(kTokens * kWidth, 1.0f);
  sums.Add({.layer_idx = 1,
            .n_tokens = kTokens,
            .projections = {
                .inputs = x.data(), .k = rows.data(), .k_stride = kWidth, .v = rows.data()}});
  const auto weights = sums.Finish(1);
  EXPECT_EQ(weights.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(MessageOf(weights.status()),
            "layer 1: gradients are not finite; the weights are damaged");
}

}  // namespace
}  // namespace kvlathe
