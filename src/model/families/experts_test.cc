// What config.json says of experts, and what of it is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Shared(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 64},        {"num_hidden_layers", 4},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 16},
          {"vocab_size", 97},         {"intermediate_size", 96},  {"max_position_embeddings", 512}};
}

json Qwen3Moe() {
  json config = Shared("qwen3_moe");
  config.update({{"num_experts", 8}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 32}});
  return config;
}

json Glm4Moe() {
  json config = Shared("glm4_moe");
  config.update({{"n_routed_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"moe_intermediate_size", 32},
                 {"n_shared_experts", 2},
                 {"first_k_dense_replace", 1},
                 {"routed_scaling_factor", 2.5},
                 {"n_group", 4},
                 {"topk_group", 2}});
  return config;
}

std::string ExpertRefusal(json config, const json& changes, StatusCode code) {
  config.update(changes);
  const auto c = ParseModelConfig(config, "config.json");
  EXPECT_EQ(c.status().code(), code) << changes.dump();
  return MessageOf(c.status());
}

TEST(ExpertFamilies, LayersAreThoseThatTheFileNames) {
  json config = Qwen3Moe();
  auto c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(c->experts->of_layer, ElementsAre(true, true, true, true));
  EXPECT_FALSE(c->experts->normalises);
  config.update({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}});
  c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_THAT(c->experts->of_layer, ElementsAre(false, false, false, true));
  config["mlp_only_layers"] = {1, 3};
  c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FALSE(c->experts.has_value());
  EXPECT_THAT(ExpertRefusal(Qwen3Moe(), {{"mlp_only_layers", {4}}}, StatusCode::kDataLoss),
              HasSubstr("'mlp_only_layers': 4 is no layer of 4"));
}

TEST(ExpertFamilies, GroupsAndSharedExpertsOfGlm) {
  const auto c = ParseModelConfig(Glm4Moe(), "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  const ExpertsConfig& e = *c->experts;
  EXPECT_EQ(e.score, ExpertsConfig::Score::kSigmoid);
  EXPECT_EQ(e.shared_ffn_dim, 64);
  EXPECT_EQ(e.n_groups, 4);
  EXPECT_EQ(e.n_used_groups, 2);
  EXPECT_FLOAT_EQ(e.scale, 2.5f);
  EXPECT_TRUE(e.has_choice_bias);
  EXPECT_THAT(e.of_layer, ElementsAre(false, true, true, true));
  EXPECT_DOUBLE_EQ(c->rotary_fraction, 0.5);
}

TEST(ExpertFamilies, CountsAreBounded) {
  const auto refused = [](const json& changes) {
    return ExpertRefusal(Qwen3Moe(), changes, StatusCode::kDataLoss);
  };
  EXPECT_THAT(refused({{"num_experts", 0}}), HasSubstr("'num_experts' is 0; expected an integer "
                                                       "from 1 to 1024"));
  EXPECT_THAT(refused({{"num_experts", 65536}}), HasSubstr("'num_experts' is 65536"));
  EXPECT_THAT(refused({{"num_experts", -1}}), HasSubstr("'num_experts' is -1"));
  EXPECT_THAT(refused({{"num_experts_per_tok", 0}}), HasSubstr("'num_experts_per_tok' is 0"));
  EXPECT_THAT(refused({{"num_experts_per_tok", 9}}),
              HasSubstr("'num_experts_per_tok' is 9; expected an integer from 1 to 8"));
  EXPECT_THAT(refused({{"moe_intermediate_size", 0}}), HasSubstr("'moe_intermediate_size' is 0"));
  EXPECT_THAT(refused({{"num_experts_per_tok", nullptr}}),
              HasSubstr("'num_experts_per_tok' is missing"));
}

TEST(ExpertFamilies, GroupsMustDivideAndHoldWhatIsChosen) {
  const auto refused = [](const json& changes) {
    return ExpertRefusal(Glm4Moe(), changes, StatusCode::kDataLoss);
  };
  EXPECT_THAT(refused({{"n_group", 3}}), HasSubstr("8 experts do not make 3 groups"));
  EXPECT_THAT(refused({{"n_group", 0}}), HasSubstr("'n_group' is 0"));
  EXPECT_THAT(refused({{"topk_group", 5}}), HasSubstr("'topk_group' is 5"));
  EXPECT_THAT(refused({{"topk_group", 1}}),
              HasSubstr("a token goes to 3 experts, but the 1 groups that it may choose from have "
                        "2"));
  EXPECT_THAT(refused({{"first_k_dense_replace", 5}}), HasSubstr("'first_k_dense_replace' is 5"));
}

TEST(ExpertFamilies, Dots1HasTheRouterOfGlm4AndWindowsInItsLastLayers) {
  json config = Glm4Moe();
  config.update({{"model_type", "dots1"}, {"sliding_window", 32}, {"max_window_layers", 3}});
  auto c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->experts->score, ExpertsConfig::Score::kSigmoid);
  EXPECT_FALSE(c->experts->normalises);
  EXPECT_TRUE(c->norms.of_qk.has_value());
  EXPECT_EQ(c->rotary_fraction, 1);
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(0, 0, 0, 32));
  config["layer_types"] = std::vector<std::string>(4, "full_attention");
  EXPECT_FALSE(ParseModelConfig(config, "config.json")->attention.HasWindow());
}

TEST(ExpertFamilies, MiniMaxM2TurnsAsManyChannelsAsRotaryDimSays) {
  json config = Shared("minimax_m2");
  config.update({{"num_local_experts", 8}, {"num_experts_per_tok", 3}, {"rotary_dim", 16}});
  config["head_dim"] = 64;
  const auto c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->rope_dim(), 16);
  EXPECT_EQ(c->attention.of(0).rope.theta, config.value("rope_theta", 5e6));
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kAllHeads);
  EXPECT_EQ(c->experts->ffn_dim, config.at("intermediate_size"));
  EXPECT_TRUE(c->experts->has_choice_bias && c->experts->normalises);
  EXPECT_THAT(ExpertRefusal(config, {{"rotary_dim", 65}}, StatusCode::kDataLoss),
              HasSubstr("'rotary_dim' is 65"));
}

TEST(ExpertFamilies, GptOssHasWindowsInEverySecondLayerAndOneGate) {
  json config = Shared("gpt_oss");
  config.update({{"num_local_experts", 8}, {"num_experts_per_tok", 4}, {"sliding_window", 24}});
  const auto c = ParseModelConfig(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).window, 24);
  EXPECT_EQ(c->attention.of(1).window, 0);
  EXPECT_TRUE(c->has_sink_logits);
  EXPECT_EQ(c->mlp, MlpKind::kClampedSwiglu);
  EXPECT_EQ(c->mlp_rows(), 2 * 96);
  EXPECT_EQ(c->experts->score, ExpertsConfig::Score::kSoftmaxOfChosen);
  EXPECT_THAT(ExpertRefusal(config, {{"swiglu_limit", 8}}, StatusCode::kUnimplemented),
              HasSubstr("swiglu_limit 8 with swiglu_alpha 1.702 is not supported"));
  // Only its experts may be blocks of four bits.
  const json mxfp4 = {{"quantization_config", {{"quant_method", "mxfp4"}}}};
  config.update(mxfp4);
  EXPECT_TRUE(ParseModelConfig(config, "config.json").ok());
  EXPECT_THAT(ExpertRefusal(Qwen3Moe(), mxfp4, StatusCode::kUnimplemented),
              HasSubstr("quantised weights are not supported"));
  EXPECT_THAT(ExpertRefusal(config, {{"quantization_config", {{"quant_method", "awq"}}}},
                            StatusCode::kUnimplemented),
              HasSubstr("quantised weights are not supported"));
}

}  // namespace
}  // namespace kvlathe
