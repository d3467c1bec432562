// Checkpoints that do not fit, and a disk that is full.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "io/file_size_limit.h"
#include "training/retrofit/model_directory.h"
#include "training/retrofit/testing/trainer_fixture.h"

namespace kvlathe {
namespace {

class CheckpointTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    path_ = directory_ + "/checkpoint.pt";
  }
  // A checkpoint behind two steps of a recipe.
  void Save(const nlohmann::json& json) {
    const TrainingRecipe recipe = *ParseRecipe(json, "test");
    const auto trainer = MakeTrainer(recipe);
    Run(trainer.get(), 2);
    ASSERT_TRUE(trainer->SaveCheckpoint(path_).ok());
  }
  // What a trainer of a recipe says to it; a refusal changes no parameter.
  std::string Refusal(const nlohmann::json& json, bool goes_on) {
    const TrainingRecipe recipe = *ParseRecipe(json, "test");
    const auto trainer = MakeTrainer(recipe);
    const torch::Tensor first = trainer->decoder().parameters()[0].second;
    const torch::Tensor before = first.detach().clone();
    const Status status = goes_on ? trainer->LoadCheckpoint(path_) : trainer->StartFrom(path_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(torch::equal(before, first));
    EXPECT_EQ(trainer->step(), 0);
    const std::string message(MessageOf(status));
    const std::string beginning = path_ + ": the checkpoint is of another ";
    EXPECT_TRUE(message.starts_with(beginning)) << message;
    return message.substr(std::min(message.size(), beginning.size()));
  }

  std::string path_;
};

TEST_F(CheckpointTest, SaysWhichRecipeOrModelItIsOf) {
  const nlohmann::json json = RecipeJson(false, "llama");
  Save(json);
  nlohmann::json other = json;
  other["seed"] = 6;
  other["trained"] = "attention";
  EXPECT_EQ(Refusal(other, true),
            "recipe: seed is 5 there, 6 here; trained is all there, attention here; take its "
            "recipe and model, or another --out");
  EXPECT_EQ(Refusal(other, false),
            "recipe: trained is all there, attention here; take one that was trained with this "
            "recipe's model and optimizer");
  other = json;
  other["model"]["num_key_value_heads"] = 2;
  EXPECT_TRUE(
      Refusal(other, false).starts_with("model: num_key_value_heads is 1 there, 2 here; take one"));
  other["model"]["num_hidden_layers"] = 3;
  EXPECT_TRUE(Refusal(other, true)
                  .starts_with("model: num_hidden_layers is 2 there, 3 here; num_key_value_heads "
                               "is 1 there, 2 here; take its"));
  EXPECT_TRUE(Refusal(RecipeJson(true, "gpt2"), false)
                  .starts_with("model: model_type is llama there, gpt2 here"));
  EXPECT_TRUE(Refusal(RecipeJson(true, "llama"), false)
                  .starts_with("recipe: muon is false there, true here"));
  other = json;
  other["model"]["tie_word_embeddings"] = false;
  EXPECT_EQ(Refusal(other, true), "model: it has no 'lm_head.weight'");
}

TEST_F(CheckpointTest, SaysWhichShapeDiffers) {
  nlohmann::json json = RecipeJson(true, "gpt2");
  Save(json);
  json["model"]["n_positions"] = 32;
  EXPECT_EQ(Refusal(json, true),
            "model: 'transformer.wpe.weight' has the shape [64, 32] there, [32, 32] here");
}

TEST_F(CheckpointTest, AnotherRecipeBeginsWithItsWeights) {
  nlohmann::json json = RecipeJson(false, "llama");
  Save(json);
  json["seed"] = 6;
  json["pool"] = {{"n", 2}};
  const TrainingRecipe recipe = *ParseRecipe(json, "test");
  const auto trainer = MakeTrainer(recipe);
  ASSERT_TRUE(trainer->StartFrom(path_).ok());
  EXPECT_EQ(trainer->step(), 0);
}

// What stood there stays, whole, and nothing is left beside it.
TEST_F(CheckpointTest, SurvivesAFullDisk) {
  const auto trainer = MakeTrainer(recipes_[0]);
  const std::string model = directory_ + "/model";
  const auto save_both = [&] {
    const Status saved = trainer->SaveCheckpoint(path_);
    const Status exported = SaveDecoder(trainer->TrainedModel(), DType::kF32, model);
    EXPECT_EQ(saved.ok(), exported.ok()) << saved << exported;
    return saved;
  };
  const auto contents = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().string()] = *ReadTextFile(entry.path().string());
    }
    return files;
  };
  Run(trainer.get(), 2);
  ASSERT_TRUE(save_both().ok());
  const auto before = contents();
  Run(trainer.get(), 2);
  for (const rlim_t n_bytes : {0, 5000, 30000}) {
    const FileSizeLimit limit(n_bytes);
    const Status status = save_both();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_NE(MessageOf(status).find(path_ + ": cannot write"), std::string::npos) << status;
  }
  EXPECT_EQ(contents(), before);
  const auto resumed = MakeTrainer(recipes_[0]);
  ASSERT_TRUE(resumed->LoadCheckpoint(path_).ok());
  EXPECT_EQ(resumed->step(), 2);
  ASSERT_TRUE(save_both().ok());
}

}  // namespace
}  // namespace kvlathe
