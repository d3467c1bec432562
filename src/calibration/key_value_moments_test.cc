#include "calibration/key_value_moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "calibration/joint_moments.h"

namespace kvlathe {
namespace {

// 6 KV heads: rows of keys before RoPE stand in one group, those with values in two.
constexpr StatisticsShape kSixHeads = {2, 6, 6, 64};
constexpr int64_t kOfToken = 6 * 64, kSide = 3 * 64, kBoth = 2 * kSide;
constexpr int kPairs = 16, kHalf = 32, kDrawnRows = 40;

std::vector<float> DrawTokens(uint64_t seed, double mean) {
  Random random(seed);
  std::vector<float> rows(kDrawnRows * kOfToken);
  for (float& x : rows) x = static_cast<float>(mean + random.Normal());
  return rows;
}

// Moments of rows (x, v) of a group as their definition has them, weighed.
struct Literal {
  std::vector<double> mean = std::vector<double>(kBoth);
  std::vector<double> covariance = std::vector<double>(kBoth * kBoth);
};
Literal MomentsOf(const std::vector<std::vector<double>>& rows,
                  const std::vector<double>& weights) {
  Literal moments;
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t t = 0; t < rows.size(); ++t) {
    for (int64_t i = 0; i < kBoth; ++i) moments.mean[i] += weights[t] / all * rows[t][i];
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    for (int64_t i = 0; i < kBoth; ++i) {
      for (int64_t j = 0; j < kBoth; ++j) {
        moments.covariance[i * kBoth + j] +=
            weights[t] / all * (rows[t][i] - moments.mean[i]) * (rows[t][j] - moments.mean[j]);
      }
    }
  }
  return moments;
}

// Rows of group 1 of layer 1: keys less the settled mean, turned, and their values.
std::vector<std::vector<double>> RowsOfGroup(const std::vector<float>& k_pre,
                                             const std::vector<float>& v,
                                             const std::vector<float>& means,
                                             const PositionShift& shift) {
  std::vector<int> positions(kDrawnRows);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> turned(k_pre.size());
  shift.TurnInFrames({positions, 6, 64, k_pre.data(), means.data() + kOfToken}, turned.data());
  std::vector<std::vector<double>> rows;
  for (int64_t t = kCalibrationSinks; t < kDrawnRows; ++t) {
    const auto keys = turned.begin() + t * kOfToken + kSide;
    const auto values = v.begin() + t * kOfToken + kSide;
    rows.emplace_back(keys, keys + kSide);
    rows.back().insert(rows.back().end(), values, values + kSide);
  }
  return rows;
}

TEST(KeyValueSumsTest, AreTheMomentsOfKeysWithTheirValues) {
  ASSERT_EQ(KeyValueHeads(kSixHeads), 3);
  ThreadPool pool(2);
  std::vector<double> frequencies(kHalf);
  for (int i = 0; i < kHalf; ++i) frequencies[i] = std::pow(0.7, i);
  const std::vector<PositionShift> shifts(2, PositionShift(300, frequencies));
  JointMomentSums joint(kSixHeads, kPairs, kHalf, &pool);
  FisherSums fisher(kSixHeads, kPairs, &pool);
  KeyValueSums sums(kSixHeads, kPairs, kHalf, &pool);
  joint.set_key_values(&sums);
  fisher.set_key_values(&sums);
  const std::vector<float> k_pre = DrawTokens(1, 2), v = DrawTokens(2, -1), g_k = DrawTokens(3, 0);
  std::vector<float> g_v = DrawTokens(4, 0);
  for (float& x : g_v) x *= 100;  // in units of its own
  std::vector<int> positions(kDrawnRows);
  std::iota(positions.begin(), positions.end(), 0);
  for (const bool is_held_back : {false, true}) {
    joint.BeginSequence(shifts, is_held_back);
    for (int l = 0; l < 2; ++l) {
      joint.Observe({l, kDrawnRows, positions.data(), nullptr, nullptr, k_pre.data(), k_pre.data(),
                     v.data()});
      RowGradients gradients;
      gradients.layer_idx = l;
      gradients.n_tokens = kDrawnRows;
      gradients.k_pre = gradients.k_post = g_k.data();
      gradients.k_pre_rows = gradients.k_post_rows = k_pre.data();
      gradients.v = g_v.data();
      gradients.v_rows = v.data();
      fisher.Add(gradients, shifts[l], joint.turning_means(), is_held_back);
    }
    fisher.CountTokens(kDrawnRows, is_held_back);
  }
  joint.SettleTurningMeans(fisher.keys_before_rope());
  CalibrationStatistics s = MakeStatistics(kSixHeads);
  ASSERT_TRUE(sums.Finish(joint.turning_means(), fisher.n_tokens(), &s).ok());
  joint.Finish(&s);

  const std::vector<std::vector<double>> rows = RowsOfGroup(k_pre, v, s.turning_mean, shifts[1]);
  std::vector<float> turned(g_k.size());
  shifts[1].TurnGradientsInFrames({positions, 6, 64, g_k.data()}, turned.data());
  std::vector<double> once(rows.size(), 1), by_keys, by_values;
  std::vector<double> f(kBoth * kBoth);
  for (int64_t t = kCalibrationSinks; t < kDrawnRows; ++t) {
    std::vector<double> g(turned.begin() + t * kOfToken + kSide,
                          turned.begin() + t * kOfToken + 2 * kSide);
    g.insert(g.end(), g_v.begin() + t * kOfToken + kSide, g_v.begin() + t * kOfToken + 2 * kSide);
    const auto middle = g.begin() + kSide;
    by_keys.push_back(std::inner_product(g.begin(), middle, g.begin(), 0.0));
    by_values.push_back(std::inner_product(middle, g.end(), middle, 0.0));
    for (int64_t i = 0; i < kBoth; ++i) {
      for (int64_t j = 0; j < kBoth; ++j) f[i * kBoth + j] += 0.5 / kDrawnRows * g[i] * g[j];
    }
  }
  const double of_keys = std::accumulate(by_keys.begin(), by_keys.end(), 0.0);
  const double of_values = std::accumulate(by_values.begin(), by_values.end(), 0.0);
  std::vector<double> weights;
  for (size_t t = 0; t < rows.size(); ++t) {
    weights.push_back(by_keys[t] / of_keys + by_values[t] / of_values);
  }
  const Literal plain = MomentsOf(rows, once), weighed = MomentsOf(rows, weights);
  const int64_t idx = 1 * 2 + 1;
  for (int64_t i = 0; i < kBoth; ++i) {
    EXPECT_NEAR(s.key_values.mean[idx * kBoth + i], plain.mean[i], 2e-4);
    EXPECT_NEAR(s.key_values.weighed_mean[idx * kBoth + i], weighed.mean[i], 2e-4);
  }
  for (int64_t i = 0; i < kBoth * kBoth; ++i) {
    const int64_t at = idx * kBoth * kBoth + i;
    ASSERT_NEAR(s.key_values.covariance[at], plain.covariance[i], 1e-3) << i;
    ASSERT_NEAR(s.key_values.weighed_covariance[at], weighed.covariance[i], 1e-3) << i;
    const double size = std::sqrt(f[i / kBoth * (kBoth + 1)] * f[i % kBoth * (kBoth + 1)]);
    ASSERT_NEAR(s.key_values.fisher[at], f[i], 1e-5 * size) << i;
  }
}

}  // namespace
}  // namespace kvlathe
