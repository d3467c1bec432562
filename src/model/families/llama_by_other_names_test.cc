#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json OtherNames(const char* model_type) {
  return {{"model_type", model_type},  {"hidden_size", 2304},       {"num_hidden_layers", 40},
          {"num_attention_heads", 36}, {"intermediate_size", 5760}, {"vocab_size", 122753}};
}

StatusOr<ModelConfig> ReadOtherNames(const json& config) {
  return ParseModelConfig(config, "config.json");
}

std::string RefusedWith(json config, const char* key, const json& value, StatusCode code) {
  config[key] = value;
  const Status status = ReadOtherNames(config).status();
  EXPECT_EQ(status.code(), code) << key << ": " << status;
  return MessageOf(status);
}

TEST(LlamaByOtherNames, ExaoneHasTwoNamesForThreeKeys) {
  json own = OtherNames("exaone"), usual = own;
  own.erase("num_hidden_layers");
  own["num_layers"] = usual["num_hidden_layers"] = 30;
  own["layer_norm_epsilon"] = usual["rms_norm_eps"] = 3e-5;
  own["activation_function"] = usual["hidden_act"] = "silu";
  own["num_key_value_heads"] = usual["num_key_value_heads"] = 9;
  for (const json& config : {own, usual}) {
    auto c = ReadOtherNames(config);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->n_layers, 30);
    EXPECT_FLOAT_EQ(c->norms.eps, 3e-5f);
    EXPECT_EQ(c->attention.of(0).rope.theta, 500000);
    EXPECT_EQ(c->max_seq_len, 4096);
    EXPECT_FALSE(c->biases.qkv || c->biases.mlp || c->tie_word_embeddings);
  }
  own.erase("num_key_value_heads");  // 8, which 36 heads cannot share
  EXPECT_THAT(MessageOf(ReadOtherNames(own).status()), HasSubstr("36 attention heads"));
  EXPECT_THAT(RefusedWith(usual, "activation_function", "gelu", StatusCode::kUnimplemented),
              HasSubstr("activation_function 'gelu'"));
  EXPECT_THAT(RefusedWith(usual, "num_layers", 0, StatusCode::kDataLoss), HasSubstr("num_layers"));
}

TEST(LlamaByOtherNames, InternLm3HasOneSwitchForQueriesAndOneForTheRest) {
  json config = OtherNames("internlm3");
  auto c = ReadOtherNames(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 2);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->max_seq_len, 32768);
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
  config["qkv_bias"] = true;
  c = ReadOtherNames(config);
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o || c->biases.mlp);
  config["bias"] = true;
  c = ReadOtherNames(config);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 6.0}};
  EXPECT_EQ(ReadOtherNames(config)->attention.of(0).rope.scaling, RopeConfig::Scaling::kDynamic);
}

TEST(LlamaByOtherNames, TheFirstQwenCountsTwiceAndEndsWhereItsLengthDoes) {
  json config = OtherNames("qwen");
  config["max_position_embeddings"] = 32768;
  config["seq_length"] = 2048;
  config["use_dynamic_ntk"] = config["use_logn_attn"] = true;
  config["rotary_emb_base"] = 20000.0;
  auto c = ReadOtherNames(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->ffn_dim, 2880);
  EXPECT_EQ(c->max_seq_len, 2048);
  EXPECT_EQ(c->n_kv_heads, 36);
  EXPECT_EQ(c->attention.of(0).rope.theta, 20000);
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o || c->biases.mlp);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-6f);
  config["no_bias"] = false;
  EXPECT_TRUE(ReadOtherNames(config)->biases.mlp);
  EXPECT_THAT(RefusedWith(config, "intermediate_size", 5761, StatusCode::kDataLoss),
              HasSubstr("'intermediate_size' is 5761"));
  EXPECT_THAT(RefusedWith(config, "scale_attn_weights", false, StatusCode::kUnimplemented),
              HasSubstr("scale_attn_weights"));
  EXPECT_THAT(RefusedWith(config, "rotary_pct", 0.1, StatusCode::kUnimplemented),
              HasSubstr("rotates 6 channels"));
}

TEST(LlamaByOtherNames, MiniCpmMultipliesEmbeddingsResidualsAndLogits) {
  json config = OtherNames("minicpm");
  config["scale_emb"] = 12;
  config["scale_depth"] = 1.4;
  config["dim_model_base"] = 256;
  config["rms_norm_eps"] = 1e-5;
  auto c = ReadOtherNames(config);
  ASSERT_TRUE(c.ok()) << c.status();
  const double residual = 1.4 / std::sqrt(40.0);
  EXPECT_FLOAT_EQ(c->embedding_scale, static_cast<float>(12 / residual));
  EXPECT_FLOAT_EQ(c->norms.eps, static_cast<float>(1e-5 / (residual * residual)));
  EXPECT_FLOAT_EQ(c->logit_scale, 256.0f / 2304);
  EXPECT_EQ(c->score_scale, 0);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_THAT(RefusedWith(config, "num_experts", 8, StatusCode::kUnimplemented),
              HasSubstr("'num_experts'"));
  EXPECT_THAT(RefusedWith(config, "sparse_config", {{"topk", 64}}, StatusCode::kUnimplemented),
              HasSubstr("'sparse_config'"));
  for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
    for (const json& wrong : {json(0), json(-1), json("large"), json(1e9)}) {
      EXPECT_THAT(RefusedWith(config, key, wrong, StatusCode::kDataLoss), HasSubstr(key));
    }
  }
}

TEST(LlamaByOtherNames, XverseIsALlama) {
  json config = OtherNames("xverse");
  config["max_position_embeddings"] = 8192;
  auto c = ReadOtherNames(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->layout, WeightLayout::kLlama);
  EXPECT_EQ(c->mlp, MlpKind::kSwiglu);
  EXPECT_EQ(c->max_seq_len, 8192);
}

}  // namespace
}  // namespace kvlathe
