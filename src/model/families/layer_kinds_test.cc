// Families whose layers differ by windows, positions and norms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "model/families/config_fixture.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

// Whether each layer turns its rows.
std::vector<bool> Turning(const ModelConfig& c) {
  std::vector<bool> turns;
  for (int l = 0; l < c.n_layers; ++l) {
    turns.push_back(c.attention.of(l).rope.scaling != RopeConfig::Scaling::kStill);
  }
  return turns;
}

TEST(LayerKinds, QwenHasWindowsInItsLastLayersOrWhereLayerTypesSaySo) {
  for (const char* family : {"qwen2", "qwen3"}) {
    nlohmann::json json = SmallJson(family, {{"sliding_window", 64}, {"max_window_layers", 3}});
    EXPECT_THAT(ParsedJson(json)->attention.Windows(4), IsEmpty());
    json["use_sliding_window"] = true;
    EXPECT_THAT(ParsedJson(json)->attention.Windows(4), ElementsAre(0, 0, 0, 64));
    json["layer_types"] = {kSliding, kFull, kSliding, kFull};
    EXPECT_THAT(ParsedJson(json)->attention.Windows(4), ElementsAre(64, 0, 64, 0));
    EXPECT_EQ(ParsedJson(json)->attention.of(0).rope.theta,
              ParsedJson(json)->attention.of(1).rope.theta);
    json["layer_types"] = {kSliding};
    EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
    json["layer_types"] = {kSliding, "chunked_attention", kSliding, kFull};
    EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("chunked_attention"));
    json.erase("layer_types");
    json["sliding_window"] = 0;
    EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("sliding_window"));
    json["sliding_window"] = 1 << 20;  // nothing ever leaves it
    EXPECT_THAT(ParsedJson(json)->attention.Windows(4), IsEmpty());
  }
}

TEST(LayerKinds, SomeLayersOfSmolLm3HaveNoPositions) {
  auto c = ParsedJson(SmallJson("smollm3", {}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(Turning(*c), ElementsAre(true, true, true, false));
  EXPECT_EQ(c->attention.of(0).rope.theta, 2e6);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_THAT(c->DescribePositions(), HasSubstr("no positions in layers 3"));
  c = ParsedJson(SmallJson("smollm3", {{"no_rope_layer_interval", 2}}));
  EXPECT_THAT(Turning(*c), ElementsAre(true, false, true, false));
  c = ParsedJson(SmallJson("smollm3", {{"no_rope_layers", {0, 1, 1, 0, 1}}}));
  EXPECT_THAT(Turning(*c), ElementsAre(false, true, true, false));
  EXPECT_THAT(c->attention.Windows(4), IsEmpty());
  // Without layer_types the window is that of the layers without positions.
  nlohmann::json json =
      SmallJson("smollm3", {{"use_sliding_window", true}, {"sliding_window", 32}});
  EXPECT_THAT(ParsedJson(json)->attention.Windows(4), ElementsAre(0, 0, 0, 32));
  json["layer_types"] = {kSliding, kFull, kFull, kFull};
  c = ParsedJson(json);
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(32, 0, 0, 0));
  EXPECT_EQ(c->attention.kinds.size(), 3);
  for (const nlohmann::json& wrong :
       {nlohmann::json({1, 1, 1}), nlohmann::json({1, 1, 1, 2}), nlohmann::json("all")}) {
    const Status status = ErrorOfJson(SmallJson("smollm3", {{"no_rope_layers", wrong}}));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong;
    EXPECT_THAT(MessageOf(status), HasSubstr("no_rope_layers"));
  }
}

TEST(LayerKinds, OlmoNormalisesWhatBlocksPutOut) {
  const auto c = ParsedJson(SmallJson("olmo2", {}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FALSE(c->norms.of_inputs);
  EXPECT_TRUE(c->norms.of_outputs);
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kAllHeads);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  EXPECT_FALSE(c->tie_word_embeddings);
}

TEST(LayerKinds, YarnOfOlmo3IsOfLayersThatSeeEverything) {
  const nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 8}};
  const auto expect = [](const nlohmann::json& json) {
    const auto c = ParsedJson(json);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_THAT(c->attention.Windows(4), ElementsAre(64, 64, 64, 0));
    EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kNone);
    EXPECT_EQ(c->attention.of(0).rope.amplitude, 1);
    EXPECT_EQ(c->attention.of(3).rope.scaling, RopeConfig::Scaling::kYarn);
    EXPECT_EQ(c->attention.of(0).rope.theta, 3e5);
    EXPECT_EQ(c->attention.of(3).rope.theta, 3e5);
  };
  nlohmann::json json =
      SmallJson("olmo3", {{"sliding_window", 64}, {"rope_theta", 3e5}, {"rope_scaling", yarn}});
  expect(json);
  json.erase("rope_scaling");
  json.erase("rope_theta");
  nlohmann::json whole = yarn;
  whole["rope_theta"] = 3e5;
  json["rope_parameters"] = {
      {"full_attention", whole},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e5}}}};
  expect(json);
  json["rope_parameters"] = whole;
  expect(json);
  EXPECT_EQ(ParsedJson(SmallJson("olmo3", {}))->attention.of(0).window, 4096);
  EXPECT_EQ(ParsedJson(SmallJson("olmo3", {}))->attention.of(0).rope.theta, 5e5);
}

TEST(LayerKinds, Exaone4TurnsRowsOfLayersWithAWindowUnlessNoneHasOne) {
  auto c = ParsedJson(SmallJson("exaone4", {{"sliding_window", nullptr}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(Turning(*c), ElementsAre(true, true, true, true));
  EXPECT_THAT(c->attention.Windows(4), IsEmpty());
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kHead);
  EXPECT_FALSE(c->norms.of_inputs);
  nlohmann::json json = SmallJson("exaone4", {{"sliding_window", 64}});
  for (const nlohmann::json& pattern :
       {nlohmann::json(), nlohmann::json(4), nlohmann::json("LLLG"), nlohmann::json("L")}) {
    json["sliding_window_pattern"] = pattern;
    c = ParsedJson(json);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_THAT(c->attention.Windows(4), ElementsAre(64, 64, 64, 0)) << pattern;
    EXPECT_THAT(Turning(*c), ElementsAre(true, true, true, false)) << pattern;
  }
  json["sliding_window_pattern"] = "LLX";
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("LLX"));
  json["layer_types"] = {kFull, kSliding, kFull, kFull};
  EXPECT_THAT(Turning(*ParsedJson(json)), ElementsAre(false, true, false, false));
}

TEST(LayerKinds, Cohere2TurnsRowsOfLayersWithAWindow) {
  const auto c = ParsedJson(SmallJson("cohere2", {{"sliding_window", 64}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(64, 64, 64, 0));
  EXPECT_THAT(Turning(*c), ElementsAre(true, true, true, false));
  EXPECT_EQ(c->norms.kind, NormKind::kLayerBare);
  EXPECT_TRUE(c->parallel_block && c->shared_norm && c->has_neighbour_pairs);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_FLOAT_EQ(c->logit_scale, 0.0625f);
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, nlohmann::json>>{
           {"use_qk_norm", true}, {"rotary_pct", 0.5}, {"use_parallel_block", false}}) {
    const Status status = ErrorOfJson(SmallJson("cohere2", {{key, value}}));
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << key;
    EXPECT_THAT(MessageOf(status), HasSubstr(key));
  }
}

TEST(LayerKinds, CohereMayNormaliseEachHeadWithWeightsOfItsOwn) {
  auto c = ParsedJson(SmallJson("cohere", {{"logit_scale", 0.25}, {"layer_norm_eps", 1e-4}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FALSE(c->norms.of_qk.has_value());
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-4f);
  EXPECT_FLOAT_EQ(c->logit_scale, 0.25f);
  EXPECT_EQ(c->attention.of(0).rope.theta, 5e5);
  c = ParsedJson(SmallJson("cohere", {{"use_qk_norm", true}}));
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kHeadOwn);
  EXPECT_EQ(c->norms.of_qk->kind, NormKind::kLayerBare);
  EXPECT_THAT(MessageOf(ErrorOfJson(SmallJson("cohere", {{"logit_scale", 0}}))),
              HasSubstr("logit_scale"));
}

TEST(LayerKinds, GlmTurnsNeighboursInHalfOfAHead) {
  const auto c = ParsedJson(SmallJson("glm4", {{"head_dim", 32}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->rope_dim(), 16);
  EXPECT_TRUE(c->has_neighbour_pairs && c->biases.qkv && c->norms.of_outputs);
  EXPECT_FALSE(c->biases.o);
  EXPECT_EQ(c->layout, WeightLayout::kGlm);
  EXPECT_FALSE(ParsedJson(SmallJson("glm", {{"head_dim", 32}}))->norms.of_outputs);
  nlohmann::json json = SmallJson("glm4", {{"head_dim", 32}});
  json["rope_parameters"] = {{"rope_theta", 1e5}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(ParsedJson(json)->rope_dim(), 8);
  json["rope_parameters"]["partial_rotary_factor"] = 0.05;
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("partial_rotary_factor"));
}

TEST(LayerKinds, GraniteKeepsItsStreamDividedByWhatMultipliesBlocks) {
  const auto c = ParsedJson(SmallJson("granite", {{"embedding_multiplier", 12},
                                                  {"residual_multiplier", 0.5},
                                                  {"attention_multiplier", 0.125},
                                                  {"logits_scaling", 8},
                                                  {"rms_norm_eps", 1e-5}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FLOAT_EQ(c->embedding_scale, 24);
  EXPECT_FLOAT_EQ(c->norms.eps, 4e-5f);
  EXPECT_FLOAT_EQ(c->score_scale, 0.125f);
  EXPECT_FLOAT_EQ(c->logit_scale, 0.125f);
  for (const char* key :
       {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    for (const nlohmann::json& wrong : {nlohmann::json(0), nlohmann::json("one")}) {
      EXPECT_THAT(MessageOf(ErrorOfJson(SmallJson("granite", {{key, wrong}}))), HasSubstr(key));
    }
  }
}

TEST(LayerKinds, GraniteWithWindowsHasSinksAndLayersThatDoNotTurn) {
  const nlohmann::json fields = {{"sliding_window", 32},
                                 {"layer_rope_theta", {0.0, 20000.0, 20000.0, 20000.0}}};
  const auto c = ParsedJson(SmallJson("granite_swa", fields));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->has_sink_logits);
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(0, 32, 32, 32));
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kStill);
  EXPECT_EQ(c->attention.of(1).rope.theta, 20000);
  const Status two = ErrorOfJson(
      SmallJson("granite_swa", {{"layer_rope_theta", {10000.0, 20000.0, 20000.0, 20000.0}}}));
  EXPECT_EQ(two.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(two), HasSubstr("'layer_rope_theta' has 10000 and 20000"));
  const Status few = ErrorOfJson(SmallJson("granite_swa", {{"layer_rope_theta", {10000.0}}}));
  EXPECT_THAT(MessageOf(few), HasSubstr("'layer_rope_theta' is not a list of 4 numbers"));
}

TEST(LayerKinds, MinistralHasAWindowWhereLayerTypesSaySo) {
  nlohmann::json json = SmallJson("ministral", {});
  EXPECT_THAT(ParsedJson(json)->attention.Windows(4), IsEmpty());
  json["sliding_window"] = 64;
  EXPECT_THAT(ParsedJson(json)->attention.Windows(4), ElementsAre(64, 64, 64, 64));
  json["layer_types"] = {kFull, kSliding, kSliding, kSliding};
  EXPECT_THAT(ParsedJson(json)->attention.Windows(4), ElementsAre(0, 64, 64, 64));
}

}  // namespace
}  // namespace kvlathe
