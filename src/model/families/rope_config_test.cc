#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "model/families/config_fixture.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

TEST(RopeOfConfig, NewerFilesHoldTheRopeInOneObject) {
  nlohmann::json json = LlamaJson();
  json.erase("rope_theta");
  json["rope_scaling"] = nullptr;
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 12345}};
  const auto c = ParsedJson(json);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.theta, 12345);
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLinear);
  json["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kUnimplemented);
  json["rope_parameters"] = "default";
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("rope_parameters"));
}

TEST(RopeOfConfig, Phi3ChoosesItsFactorsByTheContext) {
  auto c = ParsedJson(Phi3Json());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->head_dim, 96);
  EXPECT_EQ(c->layout, WeightLayout::kPhi3);
  EXPECT_EQ(c->attention.of(0).window, 0);
  // 128 K over 4 K: sqrt(1 + ln 32 / ln 4096)
  EXPECT_NEAR(c->attention.of(0).rope.amplitude, 1.19023807, 1e-7);
  EXPECT_TRUE(c->attention.of(0).rope.uses_long_factors);
  EXPECT_EQ(c->max_seq_len, 131072);
  const std::string long_positions = c->DescribePositions();
  c->ChooseContext(4097);
  EXPECT_TRUE(c->attention.of(0).rope.uses_long_factors);
  c->ChooseContext(4096);
  EXPECT_FALSE(c->attention.of(0).rope.uses_long_factors);
  EXPECT_EQ(c->max_seq_len, 4096);
  EXPECT_NE(c->DescribePositions(), long_positions);
}

TEST(RopeOfConfig, RefusesDamagedLongRope) {
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"long_factor", std::vector<double>(47, 1)},
      {"long_factor", nullptr},
      {"short_factor", std::vector<double>(48, 0)},
      {"short_factor", std::vector<std::string>(48, "1")},
      {"short_factor", 1.5},
      {"attention_factor", -1},
  };
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Phi3Json();
    json["rope_scaling"][key] = value;
    EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss) << key << " " << value;
    EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr(key));
  }
  nlohmann::json json = Phi3Json();
  json["original_max_position_embeddings"] = 0;
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
  json = Phi3Json();
  json["partial_rotary_factor"] = 0.01;  // not one channel
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kUnimplemented);
}

RopeConfig YarnOf(const nlohmann::json& scaling) {
  const auto c = ParsedJson(SmallJson("llama", {{"rope_scaling", scaling}}));
  EXPECT_TRUE(c.ok()) << c.status();
  return c.ok() ? c->attention.of(0).rope : RopeConfig();
}

TEST(RopeOfConfig, YarnHasItsAmplitudeFromTheFactorUnlessItIsSaid) {
  nlohmann::json yarn = {{"type", "yarn"}, {"factor", 4}};
  RopeConfig rope = YarnOf(yarn);
  EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(rope.original_max_position, 8192);  // as no other is said
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_TRUE(rope.has_whole_ramp);
  EXPECT_NEAR(rope.amplitude, 1 + 0.1 * std::log(4.0), 1e-12);
  yarn["mscale"] = 1;
  EXPECT_NEAR(YarnOf(yarn).amplitude, 1 + 0.1 * std::log(4.0),
              1e-12);  // counts with the other only
  yarn["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(YarnOf(yarn).amplitude, (1 + 0.1 * std::log(4.0)) / (1 + 0.05 * std::log(4.0)),
              1e-12);
  yarn["attention_factor"] = 1.25;
  yarn["original_max_position_embeddings"] = 2048;
  yarn["beta_fast"] = 0;  // as if it were not there
  yarn["truncate"] = false;
  rope = YarnOf(yarn);
  EXPECT_EQ(rope.amplitude, 1.25);
  EXPECT_EQ(rope.original_max_position, 2048);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_FALSE(rope.has_whole_ramp);
  yarn["factor"] = nullptr;  // the contexts say it
  EXPECT_EQ(YarnOf(yarn).factor, 4);
}

TEST(RopeOfConfig, YarnIsBounded) {
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"factor", 0.5},         {"factor", "four"}, {"beta_fast", -1},
      {"beta_fast", 0.5},  // less than beta_slow
      {"attention_factor", 0}, {"mscale", 1e9},    {"original_max_position_embeddings", 0},
      {"truncate", 1},         {"rope_theta", 1}};
  for (const auto& [key, value] : changes) {
    nlohmann::json yarn = {{"type", "yarn"}, {"factor", 4}};
    yarn[key] = value;
    const Status status = ErrorOfJson(SmallJson("llama", {{"rope_scaling", yarn}}));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key << " " << value;
    EXPECT_THAT(MessageOf(status), HasSubstr(key));
  }
}

TEST(RopeOfConfig, DynamicScalingGrowsThetaForContextsThatAreChosenLonger) {
  auto c = ParsedJson(SmallJson("llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 3}}}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kDynamic);
  EXPECT_EQ(c->attention.of(0).rope.original_max_position, 8192);
  EXPECT_EQ(c->attention.of(0).rope.chosen_context, 8192);
  EXPECT_EQ(c->max_seq_len, 8192);
  EXPECT_EQ(c->longest_context(), 3 * 8192);
  const std::string own = c->DescribePositions();
  c->ChooseContext(100);
  EXPECT_EQ(c->max_seq_len, 8192);
  EXPECT_EQ(c->DescribePositions(), own);
  c->ChooseContext(16384);
  EXPECT_EQ(c->max_seq_len, 16384);
  EXPECT_EQ(c->attention.of(0).rope.chosen_context, 16384);
  EXPECT_EQ(c->longest_context(), 3 * 8192);
  EXPECT_NE(c->DescribePositions(), own);
  EXPECT_EQ(ParsedJson(SmallJson("llama", {}))->longest_context(), 8192);
}

TEST(RopeOfConfig, QueriesOfMinistral3GrowWithThePosition) {
  nlohmann::json json = SmallJson("ministral3", {});
  auto c = ParsedJson(json);  // as transformers assumes
  ASSERT_TRUE(c.ok()) << c.status();
  const AttentionKind& assumed = c->attention.of(0);
  EXPECT_EQ(assumed.rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(assumed.rope.factor, 16);
  EXPECT_EQ(assumed.rope.amplitude, 1);
  EXPECT_EQ(assumed.query_growth, 0.1);
  EXPECT_EQ(assumed.growth_context, 16384);
  EXPECT_EQ(assumed.GrowthAt(16383), 1);
  EXPECT_NEAR(assumed.GrowthAt(16384), 1 + 0.1 * std::log(2.0), 1e-12);
  EXPECT_NEAR(assumed.GrowthAt(3 * 16384 + 5), 1 + 0.1 * std::log(4.0), 1e-12);
  EXPECT_THAT(c->DescribePositions(), HasSubstr("growth=0.1 by 16384"));
  json["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 5000}, {"original_max_position_embeddings", 64}};
  c = ParsedJson(json);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).query_growth, 0);
  EXPECT_EQ(c->attention.of(0).GrowthAt(1000), 1);
  json["rope_parameters"]["llama_4_scaling_beta"] = 0.2;
  json["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("partial_rotary_factor"));
  json["rope_parameters"] = {{"llama_4_scaling_beta", -1}};
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("llama_4_scaling_beta"));
  json["rope_parameters"] = {{"llama_4_scaling_beta", 1}, {"original_max_position_embeddings", 0}};
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
