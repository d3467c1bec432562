#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace kvlathe {
namespace {

TEST(Sampler, IsGreedyAtTemperatureZero) {
  const std::vector<float> logits = {0.f, 3.f, 1.f, 3.f};
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.Sample(logits), 1);
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f)};
  Sampler sampler({.temperature = 1, .seed = 3});
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.Sample(logits)];
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
    const int32_t k = top_k.Sample(logits), p = top_p.Sample(logits);
    EXPECT_TRUE(k == 2 || k == 3);
    EXPECT_TRUE(p == 2 || p == 3);
    EXPECT_EQ(top_1.Sample(logits), 2);
  }
}

TEST(Sampler, RepeatsForASeed) {
  std::vector<float> logits(100);
  for (int i = 0; i < 100; ++i) logits[i] = static_cast<float>(i % 7);
  Sampler a({.temperature = 0.8f, .seed = 11}), b({.temperature = 0.8f, .seed = 11});
  Sampler c({.temperature = 0.8f, .seed = 12});
  int n_different = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t from_a = a.Sample(logits);
    EXPECT_EQ(from_a, b.Sample(logits));
    n_different += from_a != c.Sample(logits);
  }
  EXPECT_GT(n_different, 10);
}

TEST(SamplingParams, RefusesWhatCannotBe) {
  EXPECT_FALSE((SamplingParams{.temperature = -1}).Check().ok());
  EXPECT_FALSE((SamplingParams{.temperature = NAN}).Check().ok());
  EXPECT_FALSE((SamplingParams{.top_k = -1}).Check().ok());
  EXPECT_FALSE((SamplingParams{.top_p = 0}).Check().ok());
  EXPECT_FALSE((SamplingParams{.top_p = 1.5}).Check().ok());
  EXPECT_TRUE((SamplingParams{.temperature = 1, .top_k = 5, .top_p = 0.9f}).Check().ok());
}

}  // namespace
}  // namespace kvlathe
