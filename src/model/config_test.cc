#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/scratch_folder.h"
#include "model/families/config_fixture.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelConfig, ReadsLlama3) {
  nlohmann::json json = LlamaJson();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 32.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->gqa_group(), 4);
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(c->attention.of(0).rope.factor, 32);
  EXPECT_EQ(c->eos_ids, (std::vector<int>{128001, 128008}));
  EXPECT_FALSE(c->biases.qkv);
}

TEST(ModelConfig, Qwen2HasQkvBiasAndNoOutputBias) {
  nlohmann::json json = LlamaJson();
  json["model_type"] = "qwen2";
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o);
}

TEST(ModelConfig, WithoutKvHeadsEveryHeadHasItsOwn) {
  nlohmann::json json = LlamaJson();
  json.erase("num_key_value_heads");
  EXPECT_EQ(ParseModelConfig(json, "config.json")->n_kv_heads, 32);
}

TEST(ModelConfig, NamesTheKeyThatIsWrong) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(-1), nlohmann::json("many"), nlohmann::json(1e300),
          nlohmann::json(1ull << 63), nlohmann::json(nullptr)}) {
      nlohmann::json json = LlamaJson();
      json[key] = value;
      const Status status = ErrorOfJson(json);
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
      {"rope_scaling", {{"type", "xpos"}, {"factor", 4}}},
      {"quantization_config", {{"bits", 4}}},
      {"partial_rotary_factor", 0.5},
  };
  for (const auto& [key, value] : changes) {
    nlohmann::json json = LlamaJson();
    json[key] = value;
    EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kUnimplemented) << key << " " << value;
  }
}

TEST(ModelConfig, MistralHasAWindowUnlessItIsNullOrHoldsTheWholeContext) {
  nlohmann::json json = LlamaJson();
  json["model_type"] = "mistral";
  EXPECT_EQ(ParseModelConfig(json, "config.json")->attention.of(0).window, 0);
  json["sliding_window"] = 4096;
  EXPECT_EQ(ParseModelConfig(json, "config.json")->attention.of(0).window, 4096);
  for (const nlohmann::json& none : {nlohmann::json(nullptr), nlohmann::json(131072)}) {
    json["sliding_window"] = none;
    EXPECT_EQ(ParseModelConfig(json, "config.json")->attention.of(0).window, 0) << none;
  }
  for (const nlohmann::json& wrong :
       {nlohmann::json(0), nlohmann::json(-4096), nlohmann::json(4096.5), nlohmann::json("wide")}) {
    json["sliding_window"] = wrong;
    EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("sliding_window")) << wrong;
  }
  // A Llama has none, whatever the file says.
  json["model_type"] = "llama";
  json["sliding_window"] = 4096;
  EXPECT_EQ(ParseModelConfig(json, "config.json")->attention.of(0).window, 0);
}

TEST(ModelConfig, Qwen3NormalisesQueriesAndKeysOfHeadsOfTheirOwnWidth) {
  nlohmann::json json = LlamaJson();
  json["model_type"] = "qwen3";
  json["head_dim"] = 128;
  json["rope_scaling"] = nullptr;
  const auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->norms.of_qk.has_value());
  EXPECT_FALSE(c->norms.of_outputs);
  EXPECT_FALSE(c->biases.qkv);
  EXPECT_EQ(c->head_dim, 128);
  json.erase("head_dim");
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("head_dim"));
}

nlohmann::json Gpt2() {
  return {{"model_type", "gpt2"},
          {"n_embd", 768},
          {"n_layer", 12},
          {"n_head", 12},
          {"n_positions", 1024},
          {"n_ctx", 1024},
          {"vocab_size", 50257},
          {"eos_token_id", 50256},
          {"bos_token_id", 50256},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"}};
}

TEST(ModelConfig, ReadsGpt2) {
  auto c = ParseModelConfig(Gpt2(), "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->n_kv_heads, 12);
  EXPECT_EQ(c->ffn_dim, 3072);
  EXPECT_EQ(c->max_seq_len, 1024);
  EXPECT_EQ(c->positions, PositionKind::kLearned);
  EXPECT_EQ(c->rope_dim(), 0);
  EXPECT_EQ(c->norms.kind, NormKind::kLayer);
  EXPECT_EQ(c->mlp, MlpKind::kGeluTanh);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_TRUE(c->biases.qkv && c->biases.o && c->biases.mlp);
  nlohmann::json json = Gpt2();
  json.erase("n_positions");
  json["n_ctx"] = 512;
  EXPECT_EQ(ParseModelConfig(json, "config.json")->max_seq_len, 512);
}

nlohmann::json Falcon() {
  return {{"model_type", "falcon"},
          {"hidden_size", 4544},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 71},
          {"vocab_size", 65024},
          {"multi_query", true},
          {"new_decoder_architecture", false},
          {"parallel_attn", true},
          {"bias", false},
          {"alibi", false}};
}

TEST(ModelConfig, ReadsBothKindsOfFalcon) {
  auto c = ParseModelConfig(Falcon(), "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->head_dim, 64);
  EXPECT_EQ(c->n_kv_heads, 1);
  EXPECT_EQ(c->ffn_dim, 4 * 4544);
  EXPECT_EQ(c->max_seq_len, 2048);
  EXPECT_TRUE(c->parallel_block && c->shared_norm);
  EXPECT_EQ(c->mlp, MlpKind::kGelu);
  nlohmann::json json = Falcon();
  json["hidden_size"] = 8192;
  json["num_attention_heads"] = 128;
  json["num_kv_heads"] = 8;
  json["new_decoder_architecture"] = true;
  c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_kv_heads, 8);
  EXPECT_TRUE(c->parallel_block && !c->shared_norm);
  json["num_ln_in_parallel_attn"] = 1;
  EXPECT_TRUE(ParseModelConfig(json, "config.json")->shared_norm);
}

TEST(ModelConfig, RefusesByNameWhatTheOtherFamiliesMayAskFor) {
  const std::tuple<nlohmann::json, const char*, nlohmann::json> changes[] = {
      {Falcon(), "alibi", true},
      {Falcon(), "activation", "relu"},
      {Gpt2(), "activation_function", "relu"},
      {Gpt2(), "scale_attn_by_inverse_layer_idx", true},
      {Gpt2(), "scale_attn_weights", false},
      {Gpt2(), "add_cross_attention", true},
      {Gpt2(), "n_head", 32},  // head_dim 24
      {Phi3Json(), "attention_bias", true},
  };
  for (auto [json, key, value] : changes) {
    json[key] = value;
    const Status status = ErrorOfJson(json);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << key << " " << value;
    const bool is_named = std::string(key) != "n_head";
    EXPECT_THAT(MessageOf(status), HasSubstr(is_named ? key : "head_dim"));
  }
}

TEST(ModelConfig, BoundsEveryNumberOfTheOtherFamilies) {
  const std::pair<nlohmann::json, std::vector<const char*>> families[] = {
      {Gpt2(),
       {"n_embd", "n_layer", "n_head", "n_inner", "n_positions", "n_ctx", "vocab_size",
        "layer_norm_epsilon"}},
      {Falcon(),
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_hidden_size",
        "max_position_embeddings", "vocab_size", "num_ln_in_parallel_attn", "rope_theta",
        "layer_norm_epsilon"}},
      {Phi3Json(), {"num_key_value_heads", "sliding_window", "partial_rotary_factor", "head_dim"}},
  };
  for (const auto& [family, keys] : families) {
    for (const char* key : keys) {
      for (const nlohmann::json& value :
           {nlohmann::json(-1), nlohmann::json("many"), nlohmann::json(1e300),
            nlohmann::json(1ull << 63), nlohmann::json::array()}) {
        nlohmann::json json = family;
        json[key] = value;
        const Status status = ErrorOfJson(json);
        EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key << " " << value;
        EXPECT_THAT(MessageOf(status), HasSubstr(key));
      }
    }
  }
  nlohmann::json json = Gpt2();
  json["n_embd"] = 770;
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
  json = LlamaJson();
  json["num_attention_heads"] = 1024;
  json["hidden_size"] = 512;
  json.erase("num_key_value_heads");
  EXPECT_FALSE(ErrorOfJson(json).ok());  // head_dim 0
}

TEST(ModelConfig, RefusesHeadsThatDoNotShare) {
  nlohmann::json json = LlamaJson();
  json["num_key_value_heads"] = 7;
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
  json["num_key_value_heads"] = 8;
  json["eos_token_id"] = 1 << 30;
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
}

TEST(ModelConfig, ReadsWhatARetrofitLeft) {
  nlohmann::json json = LlamaJson();
  EXPECT_FALSE(ParseModelConfig(json, "config.json")->dmc.has_value());
  json["dmc"] = {{"channel", "last"}};
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_TRUE(c->dmc.has_value());
  EXPECT_TRUE(c->dmc->is_last);
  EXPECT_TRUE(c->dmc->zeroes_after_rope);
  EXPECT_EQ(c->dmc->offset, 5);
  EXPECT_EQ(c->dmc->weight_offset, 5);
  EXPECT_EQ(c->dmc->epsilon, 0.0078125f);
  const std::string positions = c->DescribePositions();
  json["dmc"] = {{"channel", "first"}};
  c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FALSE(c->dmc->is_last);
  EXPECT_FALSE(c->dmc->zeroes_after_rope);
  EXPECT_EQ(c->dmc->offset, 0);
  EXPECT_EQ(c->dmc->epsilon, 0);
  EXPECT_NE(c->DescribePositions(), positions);
  for (const char* wrong :
       {R"(true)", R"({})", R"({"channel":"middle"})", R"({"channel":"last","offset":"5"})",
        R"({"channel":"last","epsilon":-1})", R"({"channel":"last","zero_after_rope":1})"}) {
    json["dmc"] = nlohmann::json::parse(wrong);
    const Status status = ErrorOfJson(json);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dmc")) << wrong;
  }
}

TEST(ModelConfig, ReadsWhatDecidesWhichKeysLeave) {
  nlohmann::json json = LlamaJson();
  EXPECT_FALSE(ParseModelConfig(json, "config.json")->dms.has_value());
  json.update({{"dms_window_size", 256}, {"dms_separate_alpha", true}});
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_TRUE(c->dms.has_value());
  EXPECT_EQ(c->dms->window, 256);
  EXPECT_EQ(c->dms->scale, 100);
  EXPECT_EQ(c->dms->offset, 5);
  EXPECT_TRUE(c->dms->is_per_head);
  json.update(
      {{"dms_alpha_scale", 10}, {"dms_initial_alpha_offset", -2.5}, {"dms_alpha_per", "layer"}});
  c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->dms->scale, 10);
  EXPECT_EQ(c->dms->offset, -2.5f);
  EXPECT_FALSE(c->dms->is_per_head);
  for (const auto& [key, wrong] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"dms_window_size", 0},
                                                           {"dms_window_size", 1 << 20},
                                                           {"dms_window_size", "256"},
                                                           {"dms_alpha_scale", "x"},
                                                           {"dms_alpha_per", "token"},
                                                           {"dms_separate_alpha", 1},
                                                           {"dms_separate_alpha", false}}) {
    nlohmann::json damaged = json;
    damaged[key] = wrong;
    EXPECT_THAT(MessageOf(ErrorOfJson(damaged)), HasSubstr("dms_")) << key << ' ' << wrong;
  }
}

// As nvidia/Qwen3-8B-DMS-8x has it.
TEST(ModelConfig, ReadsThatAChannelOfQueriesDecides) {
  nlohmann::json json = LlamaJson();
  const std::string positions = ParseModelConfig(json, "config.json")->DescribePositions();
  json.update({{"dms_cr", 8}, {"dms_window_size", 512}});
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_TRUE(c->decides_in_queries());
  EXPECT_TRUE(c->dms->query_channel->zeroes_after_rope);
  EXPECT_FALSE(c->dms->decides_of_itself);
  EXPECT_EQ(c->dms->window, 512);
  EXPECT_EQ(c->dms->scale, 100);
  EXPECT_EQ(c->dms->offset, 5);
  EXPECT_NE(c->DescribePositions(), positions);
  json.erase("dms_window_size");
  EXPECT_EQ(ParseModelConfig(json, "config.json")->dms->window, 512);
  json["dms_separate_alpha"] = true;
  EXPECT_FALSE(ParseModelConfig(json, "config.json")->decides_in_queries());
  json["dms_separate_alpha"] = false;
  json["dms_alpha_per"] = "layer";
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("take a model with dms_alpha_per head"));
  json["dms_alpha_per"] = "head";
  json["dmc"] = {{"channel", "last"}};
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("do not go together"));
}

// As FastDMS reads it beside a config.json that says nothing of DMS.
TEST(ModelConfig, ReadsWhatDecidesFromMetadataBesideIt) {
  const ScratchFolder folder;
  const auto config_of = [&](const nlohmann::json& config, const std::string& metadata) {
    std::ofstream(folder / "config.json") << config;
    std::ofstream(folder / "dms_metadata.json") << metadata;
    return LoadModelConfig(folder.path());
  };
  for (const char* text :
       {R"({"config": {"window_size": 128, "alpha_scale": 50, "alpha_offset": 2.5}})",
        R"({"dms_window_size": 128, "dms_alpha_scale": 50, "dms_initial_alpha_offset": 2.5})",
        R"({"window_size": 128, "alpha_scale": 50, "dms_alpha_offset": 2.5, "target_cr": 8,
            "decision_source": "borrowed_query_channel_v1"})"}) {
    const auto c = config_of(LlamaJson(), text);
    ASSERT_TRUE(c.ok()) << c.status();
    ASSERT_TRUE(c->decides_in_queries());
    EXPECT_FALSE(c->dms->query_channel->zeroes_after_rope);
    EXPECT_TRUE(c->dms->decides_of_itself);
    EXPECT_EQ(c->dms->window, 128);
    EXPECT_EQ(c->dms->scale, 50);
    EXPECT_EQ(c->dms->offset, 2.5F);
  }
  const auto bare = config_of(LlamaJson(), "{}");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->dms->window, 256);
  EXPECT_EQ(bare->dms->scale, 100);
  EXPECT_EQ(bare->dms->offset, 5);
  for (const char* wrong :
       {"[]", "{", R"({"config": 1})", R"({"window_size": 0})", R"({"alpha_scale": "x"})",
        R"({"decision_source": "external_linear_sidecar_v1"})"}) {
    EXPECT_THAT(MessageOf(config_of(LlamaJson(), wrong).status()), HasSubstr("dms_metadata.json"));
  }
  nlohmann::json both = LlamaJson();
  both["dms_window_size"] = 256;
  EXPECT_THAT(MessageOf(config_of(both, "{}").status()), HasSubstr("remove one of them"));
}

TEST(ModelConfig, SaysWhenADirectoryIsNoModel) {
  EXPECT_EQ(LoadModelConfig("/nonexistent/model").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(LoadModelConfig(::testing::TempDir()).status()), HasSubstr("config.json"));
}

}  // namespace
}  // namespace kvlathe
