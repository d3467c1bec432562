// The trainer's tests have a small corpus and recipes for it in common.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/files.h"
#include "training/retrofit/trainer.h"

namespace kvlathe {

inline nlohmann::json RecipeJson(bool muon, const char* model_type) {
  nlohmann::json json = nlohmann::json::parse(R"({
    "model": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
      "intermediate_size": 64, "vocab_size": 40, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
      "bos_token_id": 1, "eos_token_id": 2},
    "total_tokens": 30720, "batch_tokens": 512, "micro_batch_tokens": 256, "seed": 5,
    "optimizer": {"learning_rate": 0.01},
    "phases": [{"context": 16, "share": 0.5, "mixture": {"text": 3, "rows": 1}},
               {"context": 32, "share": 0.5, "mixture": {"text": 1}}],
    "validation_source": "text", "validation_tokens": 512, "validation_interval": 10})");
  if (muon) json["optimizer"]["method"] = "muon";
  if (model_type == std::string_view("gpt2")) {
    json["model"] = {{"model_type", "gpt2"}, {"n_embd", 32},      {"n_layer", 2},
                     {"n_head", 2},          {"n_inner", 64},     {"vocab_size", 40},
                     {"n_positions", 64},    {"bos_token_id", 1}, {"eos_token_id", 2}};
  }
  return json;
}

// A text in which every token follows from the one before, so that a model can learn it all.
inline void WriteCorpus(const std::string& directory) {
  std::filesystem::create_directories(directory);
  std::vector<uint16_t> text, rows;
  for (int i = 0; i < 4000; ++i) text.push_back(static_cast<uint16_t>(3 + i * 7 % 37));
  for (int i = 0; i < 17 * 30; ++i)
    rows.push_back(static_cast<uint16_t>(i % 17 == 0 ? 1 : 3 + i % 17));
  const auto write = [&](const std::string& name, const std::vector<uint16_t>& ids) {
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 2);
    ASSERT_TRUE(WriteFileAtomically(directory + "/" + name, bytes).ok());
  };
  write("text.u16", text);
  write("rows.u16", rows);
  CorpusInfo info;
  info.vocab_size = 40;
  info.bos_id = 1;
  info.sources["text"] = {"text.u16", 0, static_cast<int64_t>(text.size()), 8000};
  info.sources["rows"] = {"rows.u16", 17, static_cast<int64_t>(rows.size()), 600};
  ASSERT_TRUE(WriteCorpusInfo(directory, info).ok());
}

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // So small a model gains nothing from threads, and waits long for them on a busy machine.
    at::set_num_threads(1);
    directory_ = ::testing::TempDir() + "/kvlathe_trainer_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    WriteCorpus(directory_);
    auto corpus = Corpus::Open(directory_);
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    corpus_ = std::make_unique<Corpus>(*std::move(corpus));
    for (const auto& [muon, model_type] :
         {std::pair{false, "llama"}, {true, "llama"}, {true, "gpt2"}}) {
      auto recipe = ParseRecipe(RecipeJson(muon, model_type), "test");
      ASSERT_TRUE(recipe.ok()) << recipe.status();
      recipes_.push_back(*recipe);
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Trainer> MakeTrainer(const TrainingRecipe& recipe) {
    auto trainer = Trainer::Create(&recipe, corpus_.get(), {});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return *std::move(trainer);
  }
  static void Run(Trainer* trainer, int n_steps) {
    for (int i = 0; i < n_steps && !trainer->is_done(); ++i) {
      const Status status = trainer->Step();
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  std::string directory_;
  std::unique_ptr<Corpus> corpus_;
  std::vector<TrainingRecipe> recipes_;
};

}  // namespace kvlathe
