#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

TEST(Sampler, IsGreedyAtTemperatureZero) {
  const std::vector<float> logits = {0.f, 3.f, 1.f, 3.f};
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(*sampler.Sample(logits), 1);
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f)};
  Sampler sampler({.temperature = 1, .seed = 3});
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[*sampler.Sample(logits)];
  EXPECT_NEAR(counts[0] / double{kDraws}, 0.125, 0.01);
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.25, 0.01);
  EXPECT_NEAR(counts[2] / double{kDraws}, 0.625, 0.01);
}

TEST(Sampler, TopKAndTopPLimitTheChoice) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f), std::log(4.f)};
  Sampler top_k({.temperature = 1, .top_k = 2, .seed = 5});
  Sampler top_p({.temperature = 1, .top_p = 0.5, .seed = 5});  // 5/12 < 0.5: the second one too
  Sampler top_1({.temperature = 1, .top_p = 0.01, .seed = 5});
  for (int i = 0; i < 500; ++i) {
    const int32_t k = *top_k.Sample(logits), p = *top_p.Sample(logits);
    EXPECT_TRUE(k == 2 || k == 3);
    EXPECT_TRUE(p == 2 || p == 3);
    EXPECT_EQ(*top_1.Sample(logits), 2);
  }
}

TEST(Sampler, RepeatsForASeed) {
  std::vector<float> logits(100);
  for (int i = 0; i < 100; ++i) logits[i] = static_cast<float>(i % 7);
  Sampler a({.temperature = 0.8f, .seed = 11}), b({.temperature = 0.8f, .seed = 11});
  Sampler c({.temperature = 0.8f, .seed = 12});
  int n_different = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t from_a = *a.Sample(logits);
    EXPECT_EQ(from_a, *b.Sample(logits));
    n_different += from_a != *c.Sample(logits);
  }
  EXPECT_GT(n_different, 10);
}

// Greedy choice after penalties and bias: which token has the largest logit tells them apart.
TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  const std::vector<int32_t> prompt = {0};
  // 3 / 1.5 = 2 < 2.1; at 1.4, 2.14 > 2.1.
  EXPECT_EQ(*Sampler({.repetition_penalty = 1.5f}, prompt).Sample(std::vector{3.f, 2.1f}), 1);
  EXPECT_EQ(*Sampler({.repetition_penalty = 1.4f}, prompt).Sample(std::vector{3.f, 2.1f}), 0);
  // -1 * 1.5 = -1.5 < -1.4; dividing would have raised it.
  EXPECT_EQ(*Sampler({.repetition_penalty = 1.5f}, prompt).Sample(std::vector{-1.f, -1.4f}), 1);
  // However often a token is there, it counts once.
  EXPECT_EQ(*Sampler({.repetition_penalty = 1.4f}, std::vector<int32_t>{0, 0, 0})
                 .Sample(std::vector{3.f, 2.1f}),
            0);
}

TEST(Sampler, RepetitionPenaltyLooksBackRepeatLastN) {
  const std::vector<float> logits = {3.f, 2.9f, 2.8f, 0.f};
  const auto first = [&](int last_n, std::vector<int32_t> prompt) {
    return *Sampler({.repetition_penalty = 2, .repeat_last_n = last_n}, prompt).Sample(logits);
  };
  EXPECT_EQ(first(2, {0, 1, 3}), 0);  // 0 is out of the window
  EXPECT_EQ(first(3, {0, 1, 3}), 2);
  EXPECT_EQ(first(3, {0, 1, 0, 3}), 2);  // one 0 has left, the other has not
  EXPECT_EQ(first(0, {0, 1, 3}), 0);
  std::vector<int32_t> prompt(1000, 3);
  prompt[0] = 0;
  EXPECT_EQ(first(64, prompt), 0);
  EXPECT_EQ(first(-1, prompt), 1);
  // What is drawn enters the window, and leaves it again.
  Sampler sampler({.repetition_penalty = 2, .repeat_last_n = 2});
  std::vector<int32_t> tokens;
  for (int i = 0; i < 6; ++i) tokens.push_back(*sampler.Sample(logits));
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST(Sampler, PresenceAndFrequencyCountTheOutputAlone) {
  const std::vector<float> logits = {1.f, 0.45f};
  const std::vector<int32_t> prompt = {0, 0, 0};
  const auto drawn = [&](const SamplingParams& params, int n) {
    Sampler sampler(params, prompt);
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(*sampler.Sample(logits));
    return tokens;
  };
  // 1 | 0.5 | 0.5: the penalty does not grow.
  EXPECT_EQ(drawn({.presence_penalty = 0.5f}, 4), (std::vector<int32_t>{0, 0, 0, 0}));
  // 1, .45 | .4, .45 | .4, -.15
  EXPECT_EQ(drawn({.presence_penalty = 0.6f}, 3), (std::vector<int32_t>{0, 1, 0}));
  // 1, .45 | .7, .45 | .4, .45 | .4, .15 | .1, .15
  EXPECT_EQ(drawn({.frequency_penalty = 0.3f}, 5), (std::vector<int32_t>{0, 0, 1, 0, 1}));
  // Negative penalties invite repetition: 0.5, 0.45 after a bias against 0.
  EXPECT_EQ(drawn({.frequency_penalty = -2, .logit_bias = {{1, 0.6f}}}, 3),
            (std::vector<int32_t>{1, 1, 1}));
}

TEST(Sampler, BiasComesBeforePenalties) {
  // (1 + 2) / 2 = 1.5 < 1.6 although 1 / 2 + 2 = 2.5 would not be.
  EXPECT_EQ(*Sampler({.repetition_penalty = 2, .logit_bias = {{0, 2.f}}}, std::vector<int32_t>{0})
                 .Sample(std::vector{1.f, 1.6f}),
            1);
  EXPECT_EQ(*Sampler({.logit_bias = {{1, -100.f}}}).Sample(std::vector{0.f, 50.f}), 0);
}

TEST(Sampler, MinPKeepsWhatIsNearTheLikeliest) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f), std::log(4.f)};
  const auto seen = [&](const SamplingParams& params) {
    Sampler sampler(params);
    std::map<int32_t, int> counts;
    for (int i = 0; i < 2000; ++i) ++counts[*sampler.Sample(logits)];
    std::vector<int32_t> ids;
    for (const auto& [id, n] : counts) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(seen({.temperature = 1, .min_p = 0.19f}), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(seen({.temperature = 1, .min_p = 0.3f}), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(seen({.temperature = 1, .min_p = 0.5f}), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(seen({.temperature = 1, .min_p = 1}), (std::vector<int32_t>{2}));
  // The filters look at temperature 1: a flat distribution does not let more through.
  EXPECT_EQ(seen({.temperature = 50, .min_p = 0.5f}), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(seen({.temperature = 50, .top_p = 0.5f}), (std::vector<int32_t>{2, 3}));
}

// A draw as the header defines it: all candidates in order, then top-k, top-p, min-p, temperature.
int32_t DrawnLiterally(const std::vector<float>& logits, const SamplingParams& params,
                       uint64_t n_draws) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ids.size()) ids.resize(params.top_k);
  const float most = logits[ids.front()];
  double all = 0, before = 0;
  for (const int32_t id : ids) all += std::exp(logits[id] - most);
  std::vector<double> weights;
  double kept = 0;
  for (const int32_t id : ids) {
    const double p = std::exp(logits[id] - most);
    const bool is_likely = (params.top_p >= 1 || before < params.top_p * all) && p >= params.min_p;
    if (std::isinf(logits[id]) || (!weights.empty() && !is_likely)) break;
    before += p;
    weights.push_back(std::exp((logits[id] - most) / params.temperature));
    kept += weights.back();
  }
  double draw = Random(params.seed, n_draws).Uniform() * kept;
  for (size_t i = 0; i < weights.size(); ++i) {
    draw -= weights[i];
    if (draw < 0) return ids[i];
  }
  return ids[weights.size() - 1];
}

// Masks every third token.
class Thirds : public TokenConstraint {
 public:
  void Mask(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); i += 3) logits[i] = -INFINITY;
  }
  Status Accept(int32_t) override { return OkStatus(); }
  bool is_complete() const override { return false; }
};

// Only the likeliest tokens are put in order; the draws are those of a full sort. Logits have ties,
// and are peaked, or so flat that a draw may fall behind any number of them.
TEST(Sampler, DrawsAsIfAllTokensWereSorted) {
  const SamplingParams kHow[] = {{.temperature = 1},
                                 {.temperature = 0.3f},
                                 {.temperature = 3},
                                 {.temperature = 1, .top_k = 1},
                                 {.temperature = 1, .top_k = 40},
                                 {.temperature = 1, .top_k = 300},
                                 {.temperature = 1, .top_k = 9000},
                                 {.temperature = 1, .top_k = 40, .top_p = 0.7f, .min_p = 0.01f},
                                 {.temperature = 1, .top_p = 0.9f},
                                 {.temperature = 2, .top_p = 0.999f},
                                 {.temperature = 1, .min_p = 0.05f},
                                 {.temperature = 1, .min_p = 1e-4f},
                                 {.temperature = 1, .top_p = 0.95f, .min_p = 1e-3f}};
  for (const size_t n : {size_t{2}, size_t{255}, size_t{257}, size_t{10000}}) {
    for (const float spread : {0.f, 0.5f, 4.f}) {
      Random random(n);
      std::vector<float> logits(n);
      for (float& x : logits) {
        x = spread * std::round(8 * static_cast<float>(random.Normal())) / 8;
      }
      std::vector<float> masked = logits;
      Thirds thirds;
      thirds.Mask(masked);
      for (SamplingParams params : kHow) {
        params.seed = n;
        Sampler sampler(params), constrained(params);
        for (uint64_t draw = 0; draw < 12; ++draw) {
          ASSERT_EQ(*sampler.Sample(logits), DrawnLiterally(logits, params, draw))
              << n << " of " << spread << ", top-k " << params.top_k << ", top-p " << params.top_p;
          ASSERT_EQ(*constrained.Sample(logits, &thirds), DrawnLiterally(masked, params, draw));
        }
      }
    }
  }
}

// What Backend::FindLargest gives of a row.
LargestNumbers LargestOf(const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
  LargestNumbers largest;
  for (const int32_t id : order) {
    if (std::ssize(largest.numbers) < LargestPlan::kLargest) {
      largest.numbers.push_back({logits[id], id});
    }
  }
  return largest;
}

TEST(Sampler, DrawsTheSameTokensOfTheLikeliest) {
  Random random(8);
  for (const int n_logits : {40, 64, 1000}) {
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.temperature = 0.7f, .top_k = 40, .seed = 4},
          SamplingParams{.temperature = 1.5f, .top_k = 64, .top_p = 0.8f, .seed = 5},
          SamplingParams{.temperature = 1, .top_k = 10, .min_p = 0.2f, .seed = 6}}) {
      Sampler of_all(params), of_likeliest(params);
      ASSERT_TRUE(of_likeliest.TakesLikeliest(nullptr));
      for (int i = 0; i < 100; ++i) {
        std::vector<float> logits(n_logits);
        for (float& x : logits) x = std::round(static_cast<float>(4 * random.Normal())) / 2;
        EXPECT_EQ(*of_all.Sample(logits), *of_likeliest.SampleLikeliest(LargestOf(logits)));
      }
    }
  }
}

TEST(Sampler, WantsAllLogitsWhereOthersMayBeDrawn) {
  EXPECT_FALSE(Sampler({.temperature = 1}).TakesLikeliest(nullptr));
  EXPECT_FALSE(Sampler({.temperature = 1, .top_k = 65}).TakesLikeliest(nullptr));
  EXPECT_FALSE(Sampler({.temperature = 1, .top_p = 0.9f}).TakesLikeliest(nullptr));
  EXPECT_FALSE(Sampler({.presence_penalty = 1}).TakesLikeliest(nullptr));
  EXPECT_FALSE(Sampler({.logit_bias = {{1, 2.0f}}}).TakesLikeliest(nullptr));
}

TEST(Sampler, RefusesLikeliestOfLogitsThatAreNotFinite) {
  LargestNumbers largest = LargestOf({1, 2, 3});
  largest.are_finite = false;
  EXPECT_EQ(Sampler({}).SampleLikeliest(largest).status().code(), StatusCode::kDataLoss);
}

TEST(Sampler, RefusesLogitsThatAreNotFiniteWhereverTheyAre) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (const size_t n : {1, 15, 16, 17, 100}) {
      for (const size_t at : {size_t{0}, n / 2, n - 1}) {
        for (const float temperature : {0.f, 1.f}) {
          std::vector<float> logits(n, -3e38f);
          Sampler sampler({.temperature = temperature, .presence_penalty = 1});
          EXPECT_TRUE(sampler.Sample(logits).ok());
          logits[at] = bad;
          EXPECT_EQ(sampler.Sample(logits).status().code(), StatusCode::kDataLoss)
              << bad << " at " << at << " of " << n;
          EXPECT_EQ(sampler.n_draws(), temperature == 0 ? 0u : 1u);
        }
      }
    }
  }
}

TEST(Sampler, ABiasMayBanATokenForGood) {
  for (const float temperature : {0.f, 1.f}) {
    Sampler sampler({.temperature = temperature, .logit_bias = {{0, -INFINITY}, {2, -INFINITY}}});
    for (int i = 0; i < 50; ++i) EXPECT_EQ(*sampler.Sample(std::vector{9.f, 1.f, 5.f}), 1);
  }
}

TEST(SamplingParams, RefusesWhatCannotBe) {
  const auto is_ok = [](const SamplingParams& p) { return p.Check().ok(); };
  EXPECT_FALSE(is_ok({.temperature = -1}));
  EXPECT_FALSE(is_ok({.temperature = NAN}));
  EXPECT_FALSE(is_ok({.top_k = -1}));
  EXPECT_FALSE(is_ok({.top_p = 0}));
  EXPECT_FALSE(is_ok({.top_p = 1.5}));
  EXPECT_FALSE(is_ok({.min_p = -0.1f}));
  EXPECT_FALSE(is_ok({.min_p = NAN}));
  EXPECT_FALSE(is_ok({.repetition_penalty = 0}));
  EXPECT_FALSE(is_ok({.repetition_penalty = INFINITY}));
  EXPECT_FALSE(is_ok({.repeat_last_n = -2}));
  EXPECT_FALSE(is_ok({.presence_penalty = 2.5f}));
  EXPECT_FALSE(is_ok({.presence_penalty = NAN}));
  EXPECT_FALSE(is_ok({.frequency_penalty = -3}));
  EXPECT_FALSE(is_ok({.logit_bias = {{1, 101.f}}}));
  EXPECT_FALSE(is_ok({.logit_bias = {{1, -INFINITY}}}));
  EXPECT_TRUE(is_ok({.temperature = 1, .top_k = 5, .top_p = 0.9f, .min_p = 0.1f}));
  const SamplingParams biased = {.logit_bias = {{0, 1.f}, {7, -100.f}}};
  EXPECT_TRUE(biased.Check().ok());
  EXPECT_TRUE(biased.CheckVocabulary(8).ok());
  EXPECT_EQ(biased.CheckVocabulary(7).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE((SamplingParams{.logit_bias = {{-1, 0.f}}}).CheckVocabulary(8).ok());
}

TEST(ArgMaxTest, IsTheFirstOfTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Random random(5);
  for (const size_t n : {1, 2, 15, 16, 17, 48, 1000}) {
    for (int draw = 0; draw < 50; ++draw) {
      std::vector<float> logits(n);
      // Few values, so that there are ties; some are masked.
      for (float& x : logits) x = static_cast<float>(random.Below(7)) - 6;
      for (float& x : logits) x = x == -3 ? -kInfinity : x;
      const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(ArgMax(logits), expected);
    }
    EXPECT_EQ(ArgMax(std::vector<float>(n, -kInfinity)), 0);
  }
}

}  // namespace
}  // namespace kvlathe
