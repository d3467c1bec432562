#include "model/families/text_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/safetensors/safetensors.h"
#include "io/scratch_folder.h"
#include "model/families/config_fixture.h"
#include "model/tensor_source.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
