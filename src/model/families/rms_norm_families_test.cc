#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/families/xielu.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// What must be said of a model, whatever its family.
json RmsNormed(const char* model_type) {
  return {{"model_type", model_type},  {"hidden_size", 2048},       {"num_hidden_layers", 2},
          {"num_attention_heads", 16}, {"intermediate_size", 8192}, {"vocab_size", 50304}};
}

StatusOr<ModelConfig> ReadRmsNormed(const json& config) {
  return ParseModelConfig(config, "config.json");
}

std::string RefusalWith(json config, const char* key, const json& value, StatusCode code) {
  config[key] = value;
  const Status status = ReadRmsNormed(config).status();
  EXPECT_EQ(status.code(), code) << key << ": " << status;
  return MessageOf(status);
}

TEST(RmsNormFamilies, SeedOssHasBiasesOfQueriesKeysAndValues) {
  json config = RmsNormed("seed_oss");
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 8);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->max_seq_len, 524288);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-6f);
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o || c->biases.mlp || c->tie_word_embeddings);
  config["head_dim"] = config["num_key_value_heads"] = nullptr;
  config["attention_bias"] = false;
  config["attention_out_bias"] = config["mlp_bias"] = true;
  config["hidden_size"] = 1024;
  c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 16);
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_FALSE(c->biases.qkv);
  EXPECT_TRUE(c->biases.o && c->biases.mlp);
}

TEST(RmsNormFamilies, HunyuanWeighsQueriesBehindRope) {
  json config = RmsNormed("hunyuan_v1_dense");
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_TRUE(c->norms.of_qk.has_value());
  EXPECT_TRUE(c->norms.of_qk->weighs_turned_queries);
  EXPECT_EQ(c->norms.of_qk->over, QkNormConfig::Over::kHead);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  EXPECT_EQ(c->max_seq_len, 2048);
  EXPECT_EQ(c->n_kv_heads, 16);
  config["use_qk_norm"] = false;
  EXPECT_FALSE(ReadRmsNormed(config)->norms.of_qk.has_value());
  EXPECT_THAT(RefusalWith(config, "use_cla", true, StatusCode::kUnimplemented),
              HasSubstr("'use_cla': true"));
}

TEST(RmsNormFamilies, HunyuansAlphaIsALargerThetaAtEveryLength) {
  json config = RmsNormed("hunyuan_v1_dense");
  const json scaling = {{"type", "dynamic"}, {"alpha", 50.0}, {"factor", 1.0}, {"mscale", 1.0}};
  const double theta = 20000 * std::pow(50.0, 128.0 / 126.0);
  config["rope_theta"] = 20000.0;
  config["rope_scaling"] = scaling;
  json newer = RmsNormed("hunyuan_v1_dense");
  newer["rope_parameters"] = {{"rope_type", "dynamic"}, {"alpha", 50.0}, {"rope_theta", 20000.0}};
  for (const json& form : {config, newer}) {
    auto c = ReadRmsNormed(form);
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kNone);
    EXPECT_DOUBLE_EQ(c->attention.of(0).rope.theta, theta);
  }
  config["rope_scaling"]["alpha"] = -1;
  EXPECT_EQ(ReadRmsNormed(config).status().code(), StatusCode::kDataLoss);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(ReadRmsNormed(config)->attention.of(0).rope.scaling, RopeConfig::Scaling::kLinear);
}

TEST(RmsNormFamilies, ErnieTurnsNeighbours) {
  json config = RmsNormed("ernie4_5");
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->has_neighbour_pairs && c->tie_word_embeddings);
  EXPECT_EQ(c->n_kv_heads, 2);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->attention.of(0).rope.theta, 500000);
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
  config["use_bias"] = true;
  config["rope_theta"] = 10000.0;
  c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  EXPECT_EQ(c->attention.of(0).rope.theta, 10000);
}

TEST(RmsNormFamilies, InternLm2HasBiasesUnlessItSaysOtherwise) {
  json config = RmsNormed("internlm2");
  EXPECT_TRUE(ReadRmsNormed(config)->biases.qkv);
  EXPECT_TRUE(ReadRmsNormed(config)->biases.o);
  config["bias"] = false;
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp);
  EXPECT_EQ(c->max_seq_len, 2048);
  EXPECT_EQ(c->mlp, MlpKind::kSwiglu);
  EXPECT_THAT(RefusalWith(config, "hidden_act", "gelu", StatusCode::kUnimplemented),
              HasSubstr("hidden_act 'gelu'"));
}

TEST(RmsNormFamilies, ArceeSquaresRelu) {
  json config = RmsNormed("arcee");
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->mlp, MlpKind::kRelu2);
  EXPECT_FALSE(c->has_gate());
  EXPECT_EQ(c->mlp_rows(), 8192);
  EXPECT_EQ(c->max_seq_len, 4096);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  config["attention_bias"] = config["mlp_bias"] = true;
  c = ReadRmsNormed(config);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  EXPECT_THAT(RefusalWith(config, "hidden_act", "silu", StatusCode::kUnimplemented),
              HasSubstr("supported: relu2"));
}

TEST(RmsNormFamilies, ApertusHasLlama3sRopeUnlessTheFileNamesAnother) {
  json config = RmsNormed("apertus");
  config["rope_theta"] = 500.0;  // transformers does not look at it then
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->mlp, MlpKind::kXielu);
  ASSERT_TRUE(c->norms.of_qk.has_value());
  EXPECT_EQ(c->norms.of_qk->kind, NormKind::kRms);
  const RopeConfig& rope = c->attention.of(0).rope;
  EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(rope.theta, 12e6);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.low_freq_factor, 1);
  EXPECT_EQ(rope.high_freq_factor, 4);
  EXPECT_EQ(rope.original_max_position, 8192);
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(c->attention.of(0).rope.theta, 500);
  EXPECT_THAT(RefusalWith(config, "hidden_act", "silu", StatusCode::kUnimplemented),
              HasSubstr("supported: xielu"));
  EXPECT_THAT(RefusalWith(config, "qk_norm", false, StatusCode::kUnimplemented),
              HasSubstr("'qk_norm': false"));
}

TEST(RmsNormFamilies, NumbersOfXieluMayStandInTheConfig) {
  json config = RmsNormed("apertus");
  EXPECT_TRUE(ReadRmsNormed(config)->xielu.empty());
  config["xielu"] = {{"alpha_p", {0.5, -2}},
                     {"alpha_n", {0, 700}},
                     {"beta", {0.5, 0.25}},
                     {"eps", {-1e-6, -1e-3}}};
  auto c = ReadRmsNormed(config);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_EQ(c->xielu.size(), 2u);
  EXPECT_FLOAT_EQ(c->xielu[0].positive, std::log(1 + std::exp(0.5f)));
  EXPECT_FLOAT_EQ(c->xielu[0].negative, 0.5f + std::log(2.0f));
  EXPECT_FLOAT_EQ(c->xielu[0].beta, 0.5f);
  EXPECT_FLOAT_EQ(c->xielu[0].eps, -1e-6f);
  EXPECT_FLOAT_EQ(c->xielu[1].positive, std::log(1 + std::exp(-2.0f)));
  EXPECT_FLOAT_EQ(c->xielu[1].negative, 700.25f);
  for (const json& wrong : {json(0.5), json({0.5}), json({0.5, "x"}), json({0.5, 1e30})}) {
    json damaged = config;
    damaged["xielu"]["beta"] = wrong;
    const Status status = ReadRmsNormed(damaged).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong;
    EXPECT_THAT(MessageOf(status), HasSubstr("xielu: 'beta'"));
  }
  EXPECT_THAT(RefusalWith(config, "xielu", 3, StatusCode::kDataLoss), HasSubstr("xielu"));
}

TEST(RmsNormFamilies, SizesAreBoundedAndNamed) {
  for (const char* model_type :
       {"seed_oss", "hunyuan_v1_dense", "ernie4_5", "internlm2", "arcee", "apertus"}) {
    const json config = RmsNormed(model_type);
    for (const char* key :
         {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
      for (const json& wrong : {json(0), json(-4), json("many"), json(1ull << 63)}) {
        EXPECT_THAT(RefusalWith(config, key, wrong, StatusCode::kDataLoss), HasSubstr(key))
            << model_type;
      }
    }
    EXPECT_THAT(RefusalWith(config, "rms_norm_eps", 2, StatusCode::kDataLoss),
                HasSubstr("rms_norm_eps"));
  }
}

}  // namespace
}  // namespace kvlathe
