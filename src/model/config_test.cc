#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

nlohmann::json Llama() {
  return {{"model_type", "llama"},
          {"hidden_size", 2048},
          {"num_hidden_layers", 16},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"intermediate_size", 8192},
          {"vocab_size", 128256},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},
          {"bos_token_id", 128000},
          {"eos_token_id", {128001, 128008}}};
}

Status ErrorOf(const nlohmann::json& config) {
  return ParseModelConfig(config, "config.json").status();
}

TEST(ModelConfig, ReadsLlama3) {
  nlohmann::json json = Llama();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 32.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->gqa_group(), 4);
  EXPECT_EQ(c->rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(c->rope.factor, 32);
  EXPECT_EQ(c->eos_ids, (std::vector<int>{128001, 128008}));
  EXPECT_FALSE(c->qkv_bias);
}

TEST(ModelConfig, Qwen2HasQkvBiasAndNoOutputBias) {
  nlohmann::json json = Llama();
  json["model_type"] = "qwen2";
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->qkv_bias);
  EXPECT_FALSE(c->o_bias);
}

TEST(ModelConfig, WithoutKvHeadsEveryHeadHasItsOwn) {
  nlohmann::json json = Llama();
  json.erase("num_key_value_heads");
  EXPECT_EQ(ParseModelConfig(json, "config.json")->n_kv_heads, 32);
}

TEST(ModelConfig, NamesTheKeyThatIsWrong) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(-1), nlohmann::json("many"), nlohmann::json(1e300),
          nlohmann::json(1ull << 63), nlohmann::json(nullptr)}) {
      nlohmann::json json = Llama();
      json[key] = value;
      const Status status = ErrorOf(json);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key << " " << value;
      EXPECT_THAT(MessageOf(status), HasSubstr(key));
    }
  }
}

TEST(ModelConfig, RefusesWhatItDoesNotRun) {
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"model_type", "mamba"},
      {"hidden_act", "gelu"},
      {"head_dim", 24},
      {"head_dim", 512},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}},
      {"quantization_config", {{"bits", 4}}},
  };
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Llama();
    json[key] = value;
    EXPECT_EQ(ErrorOf(json).code(), StatusCode::kUnimplemented) << key << " " << value;
  }
  nlohmann::json window = Llama();
  window["model_type"] = "mistral";
  window["sliding_window"] = 4096;
  EXPECT_EQ(ErrorOf(window).code(), StatusCode::kUnimplemented);
  window["sliding_window"] = nullptr;
  EXPECT_TRUE(ErrorOf(window).ok());
}

TEST(ModelConfig, RefusesHeadsThatDoNotShare) {
  nlohmann::json json = Llama();
  json["num_key_value_heads"] = 7;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
  json["num_key_value_heads"] = 8;
  json["eos_token_id"] = 1 << 30;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
}

TEST(ModelConfig, SaysWhenADirectoryIsNoModel) {
  EXPECT_EQ(LoadModelConfig("/nonexistent/model").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(LoadModelConfig(::testing::TempDir()).status()), HasSubstr("config.json"));
}

}  // namespace
}  // namespace kvlathe
