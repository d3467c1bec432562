#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/families/config_fixture.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As google/gemma-3-1b has it, but for the number of layers.
nlohmann::json Gemma3() {
  return {{"model_type", "gemma3_text"},
          {"num_hidden_layers", 8},
          {"hidden_size", 1152},
          {"intermediate_size", 6912},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 1},
          {"head_dim", 256},
          {"vocab_size", 262144},
          {"max_position_embeddings", 32768},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000},
          {"rope_local_base_freq", 10000},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}},
          {"sliding_window", 512},
          {"sliding_window_pattern", 6},
          {"query_pre_attn_scalar", 64},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"final_logit_softcapping", nullptr}};
}

TEST(GemmaConfig, Gemma3HasAWindowAndAnglesOfTheirOwnInAllLayersButEverySixth) {
  const auto c = ParseModelConfig(Gemma3(), "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(c->attention.Windows(8), ElementsAre(512, 512, 512, 512, 512, 0, 512, 512));
  EXPECT_EQ(c->attention.of(0).rope.theta, 10000);
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(c->attention.of(5).rope.theta, 1000000);
  EXPECT_EQ(c->attention.of(5).rope.factor, 8);
  EXPECT_EQ(c->DescribePositions(),
            "half theta=1000000 linear factor=8; window 512 half theta=10000 in layers 0 1 2 3 4 6 "
            "7");
  EXPECT_EQ(c->mlp, MlpKind::kGeglu);
  EXPECT_EQ(c->mlp_rows(), 2 * 6912);
  EXPECT_TRUE(c->tie_word_embeddings && c->norms.of_qk.has_value() && c->norms.of_outputs);
  EXPECT_FLOAT_EQ(c->embedding_scale, std::sqrt(1152.0f));
  EXPECT_FLOAT_EQ(c->score_scale, 1 / std::sqrt(64.0f));
}

TEST(GemmaConfig, LayerTypesOfGemma3GoBeforeItsPattern) {
  nlohmann::json json = Gemma3();
  json["layer_types"] = std::vector<std::string>(8, "sliding_attention");
  json["layer_types"][1] = "full_attention";
  EXPECT_THAT(ParseModelConfig(json, "config.json")->attention.Windows(8),
              ElementsAre(512, 0, 512, 512, 512, 512, 512, 512));
  json["layer_types"][1] = "linear_attention";
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("linear_attention"));
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
}

TEST(GemmaConfig, RefusesWhatItDoesNotRunOfGemma3) {
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"use_bidirectional_attention", true}, {"hidden_activation", "gelu"}, {"head_dim", 24}};
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Gemma3();
    json[key] = value;
    const Status status = ErrorOfJson(json);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << key << " " << value;
    EXPECT_THAT(MessageOf(status), HasSubstr(key));
  }
}

TEST(GemmaConfig, TheFirstGemmaSaysGeluAndMeansItsTanh) {
  for (const nlohmann::json& activation :
       {nlohmann::json("gelu"), nlohmann::json("gelu_pytorch_tanh"), nlohmann::json()}) {
    const auto c = ParsedJson(SmallJson("gemma", {{"hidden_act", activation}}));
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->mlp, MlpKind::kGeglu);
    EXPECT_EQ(c->layout, WeightLayout::kGemma);
    EXPECT_FLOAT_EQ(c->embedding_scale, 8);
    EXPECT_TRUE(c->tie_word_embeddings);
    EXPECT_FALSE(c->norms.of_outputs || c->norms.of_qk.has_value());
    EXPECT_EQ(c->score_cap, 0);
  }
  EXPECT_EQ(ErrorOfJson(SmallJson("gemma", {{"hidden_act", "silu"}})).code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(ErrorOfJson(SmallJson("gemma", {{"hidden_activation", "gelu"}})).code(),
            StatusCode::kUnimplemented);
  nlohmann::json sparse = SmallJson("gemma", {});
  sparse.erase("head_dim");
  EXPECT_EQ(ParsedJson(sparse)->head_dim, 256);
}

TEST(GemmaConfig, Gemma2CapsScoresAndLogitsUnlessTheCapsAreNull) {
  auto c =
      ParsedJson(SmallJson("gemma2", {{"sliding_window", 512}, {"query_pre_attn_scalar", 24}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->score_cap, 50);
  EXPECT_EQ(c->logit_cap, 30);
  EXPECT_FLOAT_EQ(c->score_scale, 1 / std::sqrt(24.0f));
  EXPECT_TRUE(c->norms.of_outputs);
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(512, 0, 512, 0));
  c = ParsedJson(
      SmallJson("gemma2", {{"attn_logit_softcapping", nullptr},
                           {"final_logit_softcapping", nullptr},
                           {"layer_types", std::vector<std::string>(4, "full_attention")}}));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->score_cap, 0);
  EXPECT_EQ(c->logit_cap, 0);
  EXPECT_FALSE(c->attention.HasWindow());
  const Status negative = ErrorOfJson(SmallJson("gemma2", {{"attn_logit_softcapping", -1}}));
  EXPECT_EQ(negative.code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(negative), HasSubstr("attn_logit_softcapping"));
}

}  // namespace
}  // namespace kvlathe
