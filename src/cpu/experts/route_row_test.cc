#include "cpu/experts/route_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "cpu/memory/host_places.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using Score = RouteRule::Score;

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed RouteLogits(const RouteRule& rule, const std::vector<float>& logits,
                   const std::vector<float>& bias = {}) {
  Routed routed{std::vector<int32_t>(rule.n_used), std::vector<float>(rule.n_used)};
  RowRouter router(rule, static_cast<int>(logits.size()), bias.empty() ? nullptr : bias.data());
  router.Route(logits.data(), routed.experts.data(), routed.weights.data());
  return routed;
}

// The definitions, by sorting.
Routed LiteralRoute(const RouteRule& rule, const std::vector<float>& logits,
                    const std::vector<float>& bias) {
  const int n = static_cast<int>(logits.size());
  std::vector<double> scores(logits.begin(), logits.end());
  if (rule.score == Score::kSoftmax) {
    double sum = 0;
    for (const float l : logits) sum += std::exp(double{l});
    for (double& s : scores) s = std::exp(s) / sum;
  } else if (rule.score == Score::kSigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
  }
  std::vector<double> keys = scores;
  for (int e = 0; e < n && !bias.empty(); ++e) keys[e] += bias[e];
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto sort = [](std::vector<int>* places, const std::vector<double>& by) {
    std::stable_sort(places->begin(), places->end(), [&](int a, int b) { return by[a] > by[b]; });
  };
  if (rule.n_groups > 1) {
    const int size = n / rule.n_groups;
    std::vector<double> of_group;
    for (int g = 0; g < rule.n_groups; ++g) {
      std::vector<double> own(keys.begin() + g * size, keys.begin() + (g + 1) * size);
      std::sort(own.rbegin(), own.rend());
      of_group.push_back(rule.groups_sum_two && size > 1 ? own[0] + own[1] : own[0]);
    }
    std::vector<int> groups(rule.n_groups);
    std::iota(groups.begin(), groups.end(), 0);
    sort(&groups, of_group);
    groups.resize(rule.n_used_groups);
    std::erase_if(order, [&](int e) { return std::ranges::count(groups, e / size) == 0; });
  }
  sort(&order, keys);
  Routed routed;
  double sum = 0;
  for (int i = 0; i < rule.n_used; ++i) {
    routed.experts.push_back(order[i]);
    sum += rule.score == Score::kSoftmaxOfChosen ? std::exp(scores[order[i]]) : scores[order[i]];
  }
  for (const int32_t e : routed.experts) {
    double weight = scores[e];
    if (rule.score == Score::kSoftmaxOfChosen) weight = std::exp(weight) / sum;
    if (rule.normalises && rule.adds_min_sum) weight /= sum + rule.min_sum;
    if (rule.normalises && !rule.adds_min_sum) weight /= std::max<double>(sum, rule.min_sum);
    routed.weights.push_back(static_cast<float>(weight * rule.scale));
  }
  return routed;
}

TEST(RouteRowTest, EveryKindIsItsDefinition) {
  const RouteRule rules[] = {
      {.score = Score::kSoftmax, .n_used = 8},
      {.score = Score::kSoftmax, .n_used = 2, .normalises = true},
      {.score = Score::kSoftmax, .n_used = 6, .normalises = true, .min_sum = 0.9f},
      {.score = Score::kSoftmaxOfChosen, .n_used = 4},
      {.score = Score::kSigmoid, .n_used = 1, .scale = 2.5f},
      {.score = Score::kSigmoid,
       .n_used = 5,
       .normalises = true,
       .min_sum = 0.25f,
       .adds_min_sum = true,
       .scale = 1.5f},
      {.score = Score::kSigmoid,
       .n_used = 6,
       .normalises = true,
       .n_groups = 8,
       .n_used_groups = 2},
      {.score = Score::kSoftmax,
       .n_used = 3,
       .n_groups = 4,
       .n_used_groups = 3,
       .groups_sum_two = false},
      {.score = Score::kSoftmax, .n_used = 48}};
  Random random(3);
  for (const RouteRule& rule : rules) {
    for (int round = 0; round < 40; ++round) {
      std::vector<float> logits(48), bias(round % 2 == 0 ? 0 : 48);
      for (float& l : logits) l = static_cast<float>(random.Normal() * 2);
      for (float& b : bias) b = static_cast<float>(random.Normal() * 0.2);
      const Routed routed = RouteLogits(rule, logits, bias);
      const Routed literal = LiteralRoute(rule, logits, bias);
      ASSERT_EQ(routed.experts, literal.experts) << static_cast<int>(rule.score);
      for (int i = 0; i < rule.n_used; ++i) {
        ASSERT_NEAR(routed.weights[i], literal.weights[i], 1e-6) << static_cast<int>(rule.score);
      }
    }
  }
}

TEST(RouteRowTest, OfEqualScoresTheLowerNumberIsTaken) {
  const std::vector<float> logits = {1, 2, 2, 1, 2, 0};
  for (const Score score : {Score::kSoftmax, Score::kSigmoid, Score::kSoftmaxOfChosen}) {
    EXPECT_THAT(RouteLogits({.score = score, .n_used = 4}, logits).experts,
                ElementsAre(1, 2, 4, 0));
  }
  // Groups 0 and 1 are equally good.
  EXPECT_THAT(
      RouteLogits({.score = Score::kSigmoid, .n_used = 2, .n_groups = 3, .n_used_groups = 1},
                  {1, 2, 2, 1, 0, 0})
          .experts,
      ElementsAre(1, 0));
}

// 1.98 is within two hundredths of 2, 1.9 is not; the second choice weighs what is left.
TEST(RouteRowTest, ASparseMixerWeighsAmongThoseNearTheBest) {
  const RouteRule rule = {.score = Score::kSparseMixer, .n_used = 2};
  const Routed routed = RouteLogits(rule, {0, 1.98f, 2, 1.9f, -3});
  EXPECT_THAT(routed.experts, ElementsAre(2, 1));
  EXPECT_NEAR(routed.weights[0], 1 / (1 + std::exp(-0.02)), 1e-6);
  EXPECT_NEAR(routed.weights[1], 1, 1e-6);
  // Below zero an expert is measured by its own size.
  const Routed negative = RouteLogits(rule, {-5, -4.95f, -4.9f, -4.7f, -4.68f});
  EXPECT_THAT(negative.experts, ElementsAre(4, 3));
  EXPECT_NEAR(negative.weights[0], 1 / (1 + std::exp(-0.02)), 1e-6);
  EXPECT_NEAR(negative.weights[1], 1, 1e-6);
}

TEST(RouteRowTest, LogitsThatAreNoNumbersAreChosenLastAndSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Routed some = RouteLogits({.score = Score::kSigmoid, .n_used = 3}, {nan, -1, nan, 2});
  EXPECT_THAT(some.experts, ElementsAre(3, 1, 0));
  EXPECT_TRUE(std::isnan(some.weights[2]));
  for (const Score score :
       {Score::kSoftmax, Score::kSigmoid, Score::kSoftmaxOfChosen, Score::kSparseMixer}) {
    const Routed all = RouteLogits({.score = score, .n_used = 2}, {nan, nan, nan});
    EXPECT_THAT(all.experts, ElementsAre(0, 1));
    EXPECT_TRUE(std::isnan(all.weights[0])) << static_cast<int>(score);
  }
}

// What a row is told has the bits that it is told alone, deterministic or not.
TEST(RouteTest, NoRowDependsOnThoseBesideIt) {
  constexpr int kExperts = 37, kIn = 96, kUsed = 5;
  ThreadPool pool(3);
  CpuDevice memory;
  HostPlaces at(&memory);
  CpuResidents residents(&memory);
  Random random(5);
  std::vector<float> x(int64_t{70} * kIn), w(int64_t{kExperts + 1} * kIn), bias(kExperts);
  for (std::vector<float>* values : {&x, &w, &bias}) {
    for (float& v : *values) v = static_cast<float>(random.Normal() * 0.3);
  }
  Weight router = *Weight::Create(&residents, kExperts + 1, kIn, WeightType::kF32);
  router.WriteRows(0, kExperts + 1, DType::kF32, w.data(), kIn);
  for (const Isa isa : AvailableIsas()) {
    CpuBackend backend(&pool, isa, &memory, &residents);
    const auto route = [&](int64_t first, int64_t n_rows) {
      return backend.Route({.rule = {.score = Score::kSigmoid, .n_used = kUsed},
                            .n_experts = kExperts,
                            .n_rows = n_rows,
                            .x = at(x.data() + first * kIn),
                            .router = router.id(),
                            .has_gate_row = true,
                            .bias = at(bias.data()),
                            .choice_bias = at(bias.data())});
    };
    std::vector<RoutedRows> alone;
    for (int64_t t = 0; t < 70; ++t) alone.push_back(route(t, 1));
    for (const int64_t n_rows : {2, 7, 33, 70}) {
      const RoutedRows together = route(70 - n_rows, n_rows);
      ASSERT_EQ(std::ssize(together.gates), n_rows);
      for (int64_t t = 0; t < n_rows; ++t) {
        const RoutedRows& own = alone[70 - n_rows + t];
        ASSERT_EQ(together.gates[t], own.gates[0]) << IsaName(isa) << " " << n_rows;
        for (int i = 0; i < kUsed; ++i) {
          ASSERT_EQ(together.experts[t * kUsed + i], own.experts[i]) << IsaName(isa);
          ASSERT_EQ(together.weights[t * kUsed + i], own.weights[i]) << IsaName(isa);
        }
      }
    }
    // Against sums in double.
    double logit = 0;
    for (int i = 0; i < kIn; ++i) logit += double{x[i]} * w[kExperts * kIn + i];
    EXPECT_NEAR(alone[0].gates[0], 1 / (1 + std::exp(-logit)), 1e-5) << IsaName(isa);
  }
}

TEST(AddWeightedTest, RowsAreAddedInTheOrderOfTheChoice) {
  constexpr int kWidth = 33, kRows = 5, kEach = 3;
  ThreadPool pool(2);
  CpuDevice memory;
  HostPlaces at(&memory);
  CpuResidents residents(&memory);
  CpuBackend backend(&pool, Isa::kScalar, &memory, &residents);
  Random random(6);
  std::vector<float> x(int64_t{kRows} * kEach * kWidth), y(int64_t{kRows} * kWidth, 1.0f), weights;
  for (float& v : x) v = static_cast<float>(random.Normal());
  std::vector<int64_t> rows;
  for (int i = 0; i < kRows * kEach; ++i) {
    rows.push_back((7 * i + 3) % (kRows * kEach));
    weights.push_back(static_cast<float>(random.Uniform()));
  }
  const auto add = [&](bool accumulate) {
    backend.AddWeighted({.x = at(x.data()),
                         .n_x_rows = kRows * kEach,
                         .rows = rows,
                         .weights = weights,
                         .n_rows = kRows,
                         .n_each = kEach,
                         .n_dims = kWidth,
                         .y = at(y.data()),
                         .accumulate = accumulate});
  };
  const auto expect = [&](double before) {
    for (int t = 0; t < kRows; ++t) {
      for (int i = 0; i < kWidth; ++i) {
        double sum = before;
        for (int k = t * kEach; k < (t + 1) * kEach; ++k) {
          sum += double{weights[k]} * x[rows[k] * kWidth + i];
        }
        ASSERT_NEAR(y[t * kWidth + i], sum, 1e-5) << t << " " << i;
      }
    }
  };
  add(true);
  expect(1);
  add(false);
  expect(0);
}

}  // namespace
}  // namespace kvlathe
