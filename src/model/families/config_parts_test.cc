// What families share of config.json: RoPE, and the language model of a model that sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "io/safetensors/safetensors.h"
#include "io/scratch_folder.h"
#include "model/families/config_fixture.h"
#include "model/tensor_source.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
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
  json["rope_parameters"].erase("partial_rotary_factor");
  json["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("partial_rotary_factor"));
  json.erase("partial_rotary_factor");
  json["rope_parameters"] = {{"llama_4_scaling_beta", -1}};
  EXPECT_THAT(MessageOf(ErrorOfJson(json)), HasSubstr("llama_4_scaling_beta"));
  json["rope_parameters"] = {{"llama_4_scaling_beta", 1}, {"original_max_position_embeddings", 0}};
  EXPECT_EQ(ErrorOfJson(json).code(), StatusCode::kDataLoss);
}

TEST(TextPart, TheLanguageModelOfAModelThatSeesIsRead) {
  nlohmann::json text = SmallJson("mistral", {{"sliding_window", nullptr}});
  const auto c = ParsedJson({{"model_type", "mistral3"},
                             {"vision_config", {{"hidden_size", 16}}},
                             {"eos_token_id", 7},
                             {"text_config", text}});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->model_type, "mistral");
  EXPECT_EQ(c->hidden_dim, 64);
  EXPECT_FALSE(c->tie_word_embeddings);
  EXPECT_THAT(c->eos_ids, ElementsAre(7));
}

TEST(TextPart, WhatItLeavesOutIsAsTransformersHasIt) {
  // As google/gemma-3-4b-it.
  const nlohmann::json text = {{"hidden_size", 2560},
                               {"intermediate_size", 10240},
                               {"model_type", "gemma3_text"},
                               {"num_hidden_layers", 34},
                               {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                               {"sliding_window", 1024}};
  const auto c = ParsedJson({{"model_type", "gemma3"}, {"text_config", text}});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_heads, 8);
  EXPECT_EQ(c->n_kv_heads, 4);
  EXPECT_EQ(c->head_dim, 256);
  EXPECT_EQ(c->vocab_size, 262208);
  EXPECT_EQ(c->max_seq_len, 131072);
  EXPECT_TRUE(c->tie_word_embeddings);
  EXPECT_EQ(c->attention.of(5).rope.factor, 8);
  const auto llama =
      ParsedJson({{"model_type", "llava"}, {"text_config", {{"vocab_size", 32064}}}});
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->model_type, "llama");
  EXPECT_EQ(llama->hidden_dim, 4096);
  EXPECT_EQ(llama->vocab_size, 32064);
}

TEST(TextPart, WhatIsNotRunIsRefusedByItsName) {
  EXPECT_THAT(MessageOf(ErrorOfJson({{"model_type", "mllama"},
                                     {"text_config", {{"model_type", "mllama_text_model"}}}})),
              HasSubstr("mllama_text_model"));
  const nlohmann::json text = SmallJson("gemma", {});
  EXPECT_THAT(MessageOf(ErrorOfJson({{"model_type", "paligemma"}, {"text_config", text}})),
              HasSubstr("paligemma"));
  EXPECT_THAT(MessageOf(ErrorOfJson({{"model_type", "llava"},
                                     {"quantization_config", {{"bits", 4}}},
                                     {"text_config", SmallJson("llama", {})}})),
              HasSubstr("quantised"));
  EXPECT_EQ(ErrorOfJson({{"model_type", "llava"}, {"text_config", "llama"}}).code(),
            StatusCode::kDataLoss);
}

// Files of such models, and of models without their head, prefix names in other ways.
TEST(TextPart, TensorsAreFoundBelowThePrefixesOfTheirFiles) {
  const ScratchFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::pair<const char*, const char*> names[] = {
      {"model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
      {"lm_head.weight", "language_model.lm_head.weight"},
      {"model.norm.weight", "model.language_model.norm.weight"},
      {"model.layers.0.input_layernorm.weight", "layers.0.input_layernorm.weight"},
      {"model.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weight"}};
  const float number = 1.5f;
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, stored] : names) tensors.push_back({stored, DType::kF32, {1}, &number});
  ASSERT_TRUE(WriteSafetensors(path, tensors, {}).ok());
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto source = MakeFileSource(*std::move(reader));
  for (const auto& [name, stored] : names) {
    EXPECT_TRUE(source->Has(name)) << name;
    EXPECT_TRUE(source->Get(name, {1}).ok()) << name;
  }
  EXPECT_FALSE(source->Has("model.layers.2.input_layernorm.weight"));
  EXPECT_THAT(MessageOf(source->Get("model.absent", {1}).status()), HasSubstr("model.absent"));
}

}  // namespace
}  // namespace kvlathe
