#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// What must be said of a model, whatever its family.
json LayerNormed(const char* model_type) {
  return {{"model_type", model_type},       {"hidden_size", 2048},       {"num_hidden_layers", 4},
          {"num_attention_heads", 32},      {"intermediate_size", 8192}, {"vocab_size", 50304},
          {"max_position_embeddings", 2048}};
}

StatusOr<ModelConfig> ReadLayerNormed(const json& config) {
  return ParseModelConfig(config, "config.json");
}

std::string RefusalOf(json config, const char* key, const json& value, StatusCode code) {
  config[key] = value;
  const Status status = ReadLayerNormed(config).status();
  EXPECT_EQ(status.code(), code) << key << ": " << status;
  return MessageOf(status);
}

TEST(LayerNormFamilies, StarCoder2HasItsClassDefaultsWhereTheFileSaysNothing) {
  json config = LayerNormed("starcoder2");
  config.erase("max_position_embeddings");
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 2);
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->max_seq_len, 4096);
  EXPECT_EQ(c->norms.kind, NormKind::kLayer);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  EXPECT_EQ(c->mlp, MlpKind::kGeluTanh);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  EXPECT_FALSE(c->biases.head);
  EXPECT_EQ(c->attention.of(0).window, 0);
  config["num_key_value_heads"] = nullptr;  // as many as query heads
  config["norm_epsilon"] = 3e-5;
  config["use_bias"] = false;
  config["sliding_window"] = 1000;
  c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 32);
  EXPECT_FLOAT_EQ(c->norms.eps, 3e-5f);
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
  EXPECT_EQ(c->attention.of(3).window, 1000);
}

TEST(LayerNormFamilies, GeluIsReadByAllItsNames) {
  json config = LayerNormed("starcoder2");
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    config["hidden_act"] = name;
    EXPECT_EQ(ReadLayerNormed(config)->mlp, MlpKind::kGeluTanh) << name;
  }
  config["hidden_act"] = "gelu";
  EXPECT_EQ(ReadLayerNormed(config)->mlp, MlpKind::kGelu);
  EXPECT_THAT(RefusalOf(config, "hidden_act", "quick_gelu", StatusCode::kUnimplemented),
              HasSubstr("hidden_act 'quick_gelu' is not supported; supported: gelu"));
}

TEST(LayerNormFamilies, StableLmIsSequentialWithoutNormsOfQueriesUnlessItSaysSo) {
  json config = LayerNormed("stablelm");
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 32);
  EXPECT_EQ(c->rotary_fraction, 0.25);
  EXPECT_EQ(c->rope_dim(), 16);
  EXPECT_EQ(c->mlp, MlpKind::kSwiglu);
  EXPECT_EQ(c->norms.kind, NormKind::kLayer);
  EXPECT_FALSE(c->norms.of_qk.has_value());
  EXPECT_FALSE(c->parallel_block || c->biases.qkv || c->tie_word_embeddings);
  config["use_qkv_bias"] = config["qk_layernorm"] = config["use_parallel_residual"] = true;
  config["partial_rotary_factor"] = 0.5;
  c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->parallel_block && c->shared_norm && c->biases.qkv);
  EXPECT_FALSE(c->biases.o || c->biases.mlp);
  ASSERT_TRUE(c->norms.of_qk.has_value());
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kHeadOwn);
  EXPECT_EQ(c->norms.of_qk->kind, NormKind::kLayerBare);
  EXPECT_EQ(c->rope_dim(), 32);
  EXPECT_THAT(RefusalOf(config, "hidden_act", "gelu", StatusCode::kUnimplemented),
              HasSubstr("hidden_act 'gelu'"));
}

TEST(LayerNormFamilies, GptNeoxHasHeadsThatAreAllAlikeAndNamesOfItsOwn) {
  json config = LayerNormed("gpt_neox");
  config["num_key_value_heads"] = 4;  // means nothing there
  config["rotary_emb_base"] = 25000.0;
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 32);
  EXPECT_EQ(c->attention.of(0).rope.theta, 25000);
  EXPECT_EQ(c->rope_dim(), 16);
  EXPECT_EQ(c->mlp, MlpKind::kGelu);
  EXPECT_TRUE(c->parallel_block);
  EXPECT_FALSE(c->shared_norm);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  config["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 5000.0}, {"partial_rotary_factor", 0.5}};
  config["use_parallel_residual"] = false;
  config["attention_bias"] = false;
  c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.theta, 5000);
  EXPECT_EQ(c->rope_dim(), 32);
  EXPECT_FALSE(c->parallel_block || c->biases.qkv || c->biases.o);
  EXPECT_TRUE(c->biases.mlp);
  EXPECT_THAT(RefusalOf(config, "num_attention_heads", 33, StatusCode::kDataLoss),
              HasSubstr("33 heads cannot share 2048 hidden dimensions"));
}

TEST(LayerNormFamilies, PhiHasBiasesEverywhereAndOneNormForBothParts) {
  json config = LayerNormed("phi");
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp && c->biases.head);
  EXPECT_TRUE(c->parallel_block && c->shared_norm);
  EXPECT_EQ(c->n_kv_heads, 32);
  EXPECT_EQ(c->rope_dim(), 32);
  EXPECT_EQ(c->mlp, MlpKind::kGeluTanh);
  EXPECT_FALSE(c->norms.of_qk.has_value());
  config["qk_layernorm"] = true;
  c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_TRUE(c->norms.of_qk.has_value());
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kHead);
  EXPECT_EQ(c->norms.of_qk->kind, NormKind::kLayer);
  EXPECT_THAT(RefusalOf(config, "tie_word_embeddings", true, StatusCode::kUnimplemented),
              HasSubstr("'tie_word_embeddings': true"));
}

TEST(LayerNormFamilies, NemotronSquaresReluAndStoresNormsLessOne) {
  json config = LayerNormed("nemotron");
  config["head_dim"] = 128;
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->layout, WeightLayout::kGemma);
  EXPECT_EQ(c->mlp, MlpKind::kRelu2);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->rope_dim(), 64);
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
  config["attention_bias"] = true;
  EXPECT_TRUE(ReadLayerNormed(config)->biases.o);
  EXPECT_FALSE(ReadLayerNormed(config)->biases.mlp);
  EXPECT_THAT(RefusalOf(config, "hidden_act", "silu", StatusCode::kUnimplemented),
              HasSubstr("hidden_act 'silu' is not supported; supported: relu2"));
}

TEST(LayerNormFamilies, Jais2SquaresReluAndHasBiasesUnlessItSaysOtherwise) {
  json config = LayerNormed("jais2");
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->mlp, MlpKind::kRelu2);
  EXPECT_EQ(c->norms.kind, NormKind::kLayer);
  EXPECT_EQ(c->n_kv_heads, 32);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  EXPECT_EQ(c->rope_dim(), 64);
  config["attention_bias"] = config["mlp_bias"] = false;
  c = ReadLayerNormed(config);
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
}

TEST(LayerNormFamilies, TheFirstOlmoHasNormsWithoutWeights) {
  const json config = LayerNormed("olmo");
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->norms.kind, NormKind::kLayerBare);
  EXPECT_FALSE(c->norms.has_weights);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  EXPECT_TRUE(c->norms.of_inputs);
  EXPECT_THAT(RefusalOf(config, "clip_qkv", 8, StatusCode::kUnimplemented),
              HasSubstr("'clip_qkv' is 8"));
}

TEST(LayerNormFamilies, OrionIsALlamaWithLayerNorm) {
  json config = LayerNormed("orion");
  config["rms_norm_eps"] = 3e-5;
  auto c = ReadLayerNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->norms.kind, NormKind::kLayer);
  EXPECT_TRUE(c->norms.has_weights);
  EXPECT_FLOAT_EQ(c->norms.eps, 3e-5f);
  EXPECT_EQ(c->mlp, MlpKind::kSwiglu);
  config.erase("max_position_embeddings");
  EXPECT_THAT(MessageOf(ReadLayerNormed(config).status()),
              HasSubstr("'max_position_embeddings' is missing"));
}

TEST(LayerNormFamilies, SharesThatRotateAreBounded) {
  for (const char* model_type : {"stablelm", "gpt_neox", "phi", "nemotron"}) {
    const json config = LayerNormed(model_type);
    const bool is_neox = std::string(model_type) == "gpt_neox";
    const char* const key = is_neox ? "rotary_pct" : "partial_rotary_factor";
    for (const json& wrong : {json(-1), json(1.5), json("half"), json(0)}) {
      EXPECT_THAT(RefusalOf(config, key, wrong, StatusCode::kDataLoss), HasSubstr(key));
    }
    // 6 and 0 of 64 channels.
    EXPECT_THAT(RefusalOf(config, key, 0.1, StatusCode::kUnimplemented),
                HasSubstr("rotates 6 channels of a head; supported: multiples of 4"));
    EXPECT_THAT(RefusalOf(config, key, 0.01, StatusCode::kUnimplemented), HasSubstr("rotates 0"));
    const json inner = {{"rope_type", "default"}, {"partial_rotary_factor", 0.1}};
    EXPECT_THAT(RefusalOf(config, "rope_parameters", inner, StatusCode::kUnimplemented),
                HasSubstr("rotates 6 channels"));
  }
}

TEST(LayerNormFamilies, NumbersAreBoundedAndNamed) {
  const std::pair<const char*, const char*> eps_of[] = {{"starcoder2", "norm_epsilon"},
                                                        {"stablelm", "layer_norm_eps"},
                                                        {"gpt_neox", "layer_norm_eps"},
                                                        {"phi", "layer_norm_eps"},
                                                        {"nemotron", "norm_eps"}};
  for (const auto& [model_type, eps] : eps_of) {
    const json config = LayerNormed(model_type);
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "vocab_size", "max_position_embeddings"}) {
      for (const json& wrong : {json(0), json(-4), json("many"), json(1ull << 63)}) {
        EXPECT_THAT(RefusalOf(config, key, wrong, StatusCode::kDataLoss), HasSubstr(key));
      }
    }
    for (const json& wrong : {json(-1e-5), json(0), json(2), json("small")}) {
      EXPECT_THAT(RefusalOf(config, eps, wrong, StatusCode::kDataLoss), HasSubstr(eps));
    }
  }
}

}  // namespace
}  // namespace kvlathe
