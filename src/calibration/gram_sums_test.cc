#include "calibration/gram_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

class GramAdderTest : public ::testing::TestWithParam<Isa> {};

TEST_P(GramAdderTest, AddsWeightedProductsToTheLowerTriangle) {
  constexpr int kRows = 37;
  Random random(1);
  for (const int n_dims : {3, 16, 40}) {
    std::vector<float> rows(kRows * n_dims), weights(kRows);
    for (float& x : rows) x = static_cast<float>(0.5 + random.Normal());
    for (float& w : weights) w = static_cast<float>(random.Uniform());
    for (const bool has_weights : {false, true}) {
      std::vector<double> sum(n_dims, 2.0), gram(n_dims * n_dims, 3.0);
      GramAdder adder(GetParam());
      const GramSums to = {sum.data(), gram.data()};
      if (has_weights) {
        adder.AddWeighted(rows.data(), weights.data(), kRows, n_dims, to);
      } else {
        double trace = 0;
        for (const float x : rows) trace += double{x} * x;
        EXPECT_NEAR(adder.Add(rows.data(), kRows, n_dims, to, 0.25), trace, 1e-4 * trace);
      }
      for (int i = 0; i < n_dims; ++i) {
        const auto weight = [&](int t) { return has_weights ? weights[t] : 0.25; };
        double expected_sum = 2;
        for (int t = 0; t < kRows; ++t) expected_sum += weight(t) * rows[t * n_dims + i];
        EXPECT_NEAR(sum[i], expected_sum, 1e-4);
        for (int j = 0; j < n_dims; ++j) {
          double expected = 3;
          for (int t = 0; j <= i && t < kRows; ++t) {
            expected += weight(t) * rows[t * n_dims + i] * rows[t * n_dims + j];
          }
          EXPECT_NEAR(gram[i * n_dims + j], expected, 1e-4);
        }
      }
    }
  }
}

TEST_P(GramAdderTest, AValueThatIsNotFiniteShows) {
  std::vector<float> rows(5 * 16, 1.0f);
  std::vector<double> sum(16), gram(256);
  GramAdder adder(GetParam());
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    rows[35] = x;
    EXPECT_FALSE(std::isfinite(adder.Add(rows.data(), 5, 16, {sum.data(), gram.data()})));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GramAdderTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace kvlathe
