#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(c->attention.of(0).rope.factor, 32);
  EXPECT_EQ(c->eos_ids, (std::vector<int>{128001, 128008}));
  EXPECT_FALSE(c->biases.qkv);
}

TEST(ModelConfig, Qwen2HasQkvBiasAndNoOutputBias) {
  nlohmann::json json = Llama();
  json["model_type"] = "qwen2";
  auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o);
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
      {"partial_rotary_factor", 0.5},
  };
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Llama();
    json[key] = value;
    EXPECT_EQ(ErrorOf(json).code(), StatusCode::kUnimplemented) << key << " " << value;
  }
  nlohmann::json qwen = Llama();
  qwen["model_type"] = "qwen2";
  qwen["sliding_window"] = 4096;
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(ErrorOf(qwen).code(), StatusCode::kUnimplemented);
  qwen["use_sliding_window"] = false;
  EXPECT_EQ(ParseModelConfig(qwen, "config.json")->attention.of(0).window, 0);
}

TEST(ModelConfig, MistralHasAWindowUnlessItIsNullOrHoldsTheWholeContext) {
  nlohmann::json json = Llama();
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
    EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("sliding_window")) << wrong;
  }
  // A Llama has none, whatever the file says.
  json["model_type"] = "llama";
  json["sliding_window"] = 4096;
  EXPECT_EQ(ParseModelConfig(json, "config.json")->attention.of(0).window, 0);
}

TEST(ModelConfig, NewerFilesHoldTheRopeInOneObject) {
  nlohmann::json json = Llama();
  json.erase("rope_theta");
  json["rope_scaling"] = nullptr;
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 12345}};
  const auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.theta, 12345);
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLinear);
  json["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kUnimplemented);
  json["rope_parameters"] = "default";
  EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("rope_parameters"));
}

TEST(ModelConfig, Qwen3NormalisesQueriesAndKeysOfHeadsOfTheirOwnWidth) {
  nlohmann::json json = Llama();
  json["model_type"] = "qwen3";
  json["head_dim"] = 128;
  json["rope_scaling"] = nullptr;
  const auto c = ParseModelConfig(json, "config.json");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->norms.of_qk.has_value());
  EXPECT_FALSE(c->norms.of_outputs);
  EXPECT_FALSE(c->biases.qkv);
  EXPECT_EQ(c->head_dim, 128);
  json["use_sliding_window"] = true;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kUnimplemented);
  json.erase("head_dim");
  EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("head_dim"));
}

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

TEST(ModelConfig, Gemma3HasAWindowAndAnglesOfTheirOwnInAllLayersButEverySixth) {
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

TEST(ModelConfig, LayerTypesOfGemma3GoBeforeItsPattern) {
  nlohmann::json json = Gemma3();
  json["layer_types"] = std::vector<std::string>(8, "sliding_attention");
  json["layer_types"][1] = "full_attention";
  EXPECT_THAT(ParseModelConfig(json, "config.json")->attention.Windows(8),
              ElementsAre(512, 0, 512, 512, 512, 512, 512, 512));
  json["layer_types"][1] = "linear_attention";
  EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("linear_attention"));
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
}

TEST(ModelConfig, RefusesWhatItDoesNotRunOfGemma3) {
  const std::pair<const char*, nlohmann::json> changes[] = {{"final_logit_softcapping", 30},
                                                            {"attn_logit_softcapping", 50},
                                                            {"use_bidirectional_attention", true},
                                                            {"hidden_activation", "gelu"},
                                                            {"head_dim", 24}};
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Gemma3();
    json[key] = value;
    const Status status = ErrorOf(json);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << key << " " << value;
    EXPECT_THAT(MessageOf(status), HasSubstr(key));
  }
}

nlohmann::json Phi3() {
  nlohmann::json json = Llama();
  json["model_type"] = "phi3";
  json["hidden_size"] = 3072;
  json["num_key_value_heads"] = 32;
  json["original_max_position_embeddings"] = 4096;
  json["rope_theta"] = 10000.0;
  json["rope_scaling"] = {{"type", "longrope"},
                          {"short_factor", std::vector<double>(48, 1.5)},
                          {"long_factor", std::vector<double>(48, 20)}};
  json["sliding_window"] = 262144;
  return json;
}

TEST(ModelConfig, Phi3ChoosesItsFactorsByTheContext) {
  auto c = ParseModelConfig(Phi3(), "config.json");
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

TEST(ModelConfig, RefusesDamagedLongRope) {
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"long_factor", std::vector<double>(47, 1)},
      {"long_factor", nullptr},
      {"short_factor", std::vector<double>(48, 0)},
      {"short_factor", std::vector<std::string>(48, "1")},
      {"short_factor", 1.5},
      {"attention_factor", -1},
  };
  for (const auto& [key, value] : changes) {
    nlohmann::json json = Phi3();
    json["rope_scaling"][key] = value;
    EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss) << key << " " << value;
    EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr(key));
  }
  nlohmann::json json = Phi3();
  json["original_max_position_embeddings"] = 0;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
  json = Phi3();
  json["partial_rotary_factor"] = 0.01;  // not one channel
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kUnimplemented);
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
      {Phi3(), "attention_bias", true},
  };
  for (auto [json, key, value] : changes) {
    json[key] = value;
    const Status status = ErrorOf(json);
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
      {Phi3(), {"num_key_value_heads", "sliding_window", "partial_rotary_factor", "head_dim"}},
  };
  for (const auto& [family, keys] : families) {
    for (const char* key : keys) {
      for (const nlohmann::json& value :
           {nlohmann::json(-1), nlohmann::json("many"), nlohmann::json(1e300),
            nlohmann::json(1ull << 63), nlohmann::json::array()}) {
        nlohmann::json json = family;
        json[key] = value;
        const Status status = ErrorOf(json);
        EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key << " " << value;
        EXPECT_THAT(MessageOf(status), HasSubstr(key));
      }
    }
  }
  nlohmann::json json = Gpt2();
  json["n_embd"] = 770;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
  json = Llama();
  json["num_attention_heads"] = 1024;
  json["hidden_size"] = 512;
  json.erase("num_key_value_heads");
  EXPECT_FALSE(ErrorOf(json).ok());  // head_dim 0
}

TEST(ModelConfig, RefusesHeadsThatDoNotShare) {
  nlohmann::json json = Llama();
  json["num_key_value_heads"] = 7;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
  json["num_key_value_heads"] = 8;
  json["eos_token_id"] = 1 << 30;
  EXPECT_EQ(ErrorOf(json).code(), StatusCode::kDataLoss);
}

TEST(ModelConfig, ReadsWhatARetrofitLeft) {
  nlohmann::json json = Llama();
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
    const Status status = ErrorOf(json);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dmc")) << wrong;
  }
}

TEST(ModelConfig, ReadsWhatDecidesWhichKeysLeave) {
  nlohmann::json json = Llama();
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
    EXPECT_THAT(MessageOf(ErrorOf(damaged)), HasSubstr("dms_")) << key << ' ' << wrong;
  }
}

// As nvidia/Qwen3-8B-DMS-8x has it.
TEST(ModelConfig, ReadsThatAChannelOfQueriesDecides) {
  nlohmann::json json = Llama();
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
  EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("take a model with dms_alpha_per head"));
  json["dms_alpha_per"] = "head";
  json["dmc"] = {{"channel", "last"}};
  EXPECT_THAT(MessageOf(ErrorOf(json)), HasSubstr("do not go together"));
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
    const auto c = config_of(Llama(), text);
    ASSERT_TRUE(c.ok()) << c.status();
    ASSERT_TRUE(c->decides_in_queries());
    EXPECT_FALSE(c->dms->query_channel->zeroes_after_rope);
    EXPECT_TRUE(c->dms->decides_of_itself);
    EXPECT_EQ(c->dms->window, 128);
    EXPECT_EQ(c->dms->scale, 50);
    EXPECT_EQ(c->dms->offset, 2.5F);
  }
  const auto bare = config_of(Llama(), "{}");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->dms->window, 256);
  EXPECT_EQ(bare->dms->scale, 100);
  EXPECT_EQ(bare->dms->offset, 5);
  for (const char* wrong :
       {"[]", "{", R"({"config": 1})", R"({"window_size": 0})", R"({"alpha_scale": "x"})",
        R"({"decision_source": "external_linear_sidecar_v1"})"}) {
    EXPECT_THAT(MessageOf(config_of(Llama(), wrong).status()), HasSubstr("dms_metadata.json"));
  }
  nlohmann::json both = Llama();
  both["dms_window_size"] = 256;
  EXPECT_THAT(MessageOf(config_of(both, "{}").status()), HasSubstr("remove one of them"));
}

TEST(ModelConfig, SaysWhenADirectoryIsNoModel) {
  EXPECT_EQ(LoadModelConfig("/nonexistent/model").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(LoadModelConfig(::testing::TempDir()).status()), HasSubstr("config.json"));
}

}  // namespace
}  // namespace kvlathe
