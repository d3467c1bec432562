#include "calibration/gradients/route_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "cpu/experts/route_row.h"

namespace kvlathe {
namespace {

constexpr int kExperts = 8;

// The weights that the machine gives the experts of a row.
struct RoutedRow {
  std::vector<int32_t> experts;
  std::vector<float> weights;

  RoutedRow(const ExpertsConfig& c, const RouteRule& rule, const std::vector<float>& logits,
            const std::vector<float>& choice_bias)
      : experts(c.n_used), weights(c.n_used) {
    RowRouter(rule, kExperts, choice_bias.data())
        .Route(logits.data(), experts.data(), weights.data());
  }
};

void ExpectFiniteDifferences(const ExpertsConfig& c, RouteRule::Score score) {
  const RouteRule rule = {.score = score,
                          .n_used = c.n_used,
                          .normalises = c.normalises,
                          .min_sum = c.min_sum,
                          .adds_min_sum = c.adds_min_sum,
                          .scale = c.scale,
                          .n_groups = c.n_groups,
                          .n_used_groups = c.n_used_groups,
                          .groups_sum_two = c.groups_sum_two,
                          .mixer_jitter = c.mixer_jitter};
  Random random(7);
  for (int row = 0; row < 20; ++row) {
    std::vector<float> logits(kExperts), choice_bias(kExperts), by(kExperts), d_logits(kExperts);
    for (float& x : logits) x = static_cast<float>(random.Normal());
    for (float& x : choice_bias) x = static_cast<float>(0.1 * random.Normal());
    for (float& x : by) x = static_cast<float>(random.Normal());
    std::vector<double> d_weights(c.n_used);
    for (double& x : d_weights) x = random.Normal();
    const RoutedRow routed(c, rule, logits, choice_bias);
    RouteBack(c, logits, routed.experts, d_weights, d_logits);
    double along = 0;
    for (int e = 0; e < kExperts; ++e) along += double{d_logits[e]} * by[e];
    constexpr float kStep = 1e-2f;
    double difference = 0;
    bool is_same = true;
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> moved = logits;
      for (int e = 0; e < kExperts; ++e) moved[e] += sign * kStep * by[e];
      const RoutedRow other(c, rule, moved, choice_bias);
      is_same = is_same && other.experts == routed.experts;
      for (int i = 0; i < c.n_used; ++i) difference += sign * other.weights[i] * d_weights[i];
    }
    // A row whose experts change has no difference to be compared with.
    if (is_same) EXPECT_NEAR(along, difference / (2 * kStep), 3e-3 * (1 + std::abs(along)));
  }
}

ExpertsConfig DrawnExperts(ExpertsConfig::Score score) {
  ExpertsConfig c;
  c.n_experts = kExperts;
  c.n_used = 3;
  c.score = score;
  c.scale = 1.7f;
  return c;
}

TEST(RouteGradientTest, IsAFiniteDifferenceForEveryScore) {
  ExpertsConfig softmax = DrawnExperts(ExpertsConfig::Score::kSoftmax);
  ExpectFiniteDifferences(softmax, RouteRule::Score::kSoftmax);
  softmax.normalises = true;
  ExpectFiniteDifferences(softmax, RouteRule::Score::kSoftmax);
  softmax.min_sum = 2;  // which no sum reaches
  ExpectFiniteDifferences(softmax, RouteRule::Score::kSoftmax);
  ExpertsConfig sigmoid = DrawnExperts(ExpertsConfig::Score::kSigmoid);
  ExpectFiniteDifferences(sigmoid, RouteRule::Score::kSigmoid);
  sigmoid.normalises = sigmoid.adds_min_sum = true;
  sigmoid.min_sum = 0.5f;
  sigmoid.n_groups = 4;
  sigmoid.n_used_groups = 2;
  ExpectFiniteDifferences(sigmoid, RouteRule::Score::kSigmoid);
  ExpectFiniteDifferences(DrawnExperts(ExpertsConfig::Score::kSoftmaxOfChosen),
                          RouteRule::Score::kSoftmaxOfChosen);
}

// The set that a softmax is of changes with the logits, which a wide jitter makes rare.
TEST(RouteGradientTest, IsAFiniteDifferenceOfTheSparseMixer) {
  ExpertsConfig mixer = DrawnExperts(ExpertsConfig::Score::kSparseMixer);
  mixer.n_used = 2;
  mixer.mixer_jitter = 50;
  ExpectFiniteDifferences(mixer, RouteRule::Score::kSparseMixer);
}

}  // namespace
}  // namespace kvlathe
