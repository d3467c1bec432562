// The stages of a retrofit with Dynamic Memory Compression.
#include <gtest/gtest.h>

#include <algorithm>

#include "training/retrofit/testing/trainer_fixture.h"

namespace kvlathe {
namespace {

using torch::Tensor;

// A retrofit of the model that learned the text, in few steps.
class DmcTrainerTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    nlohmann::json json = RecipeJson(false, "llama");
    json["optimizer"] = {{"learning_rate", 0.005}, {"final_share", 0.1}, {"warmup_share", 0}};
    json["phases"] = {{{"context", 32}, {"share", 1}, {"mixture", {{"text", 1}}}}};
    json["dmc"] = {
        {"compression", 2}, {"zero_out_steps", 10}, {"ramp_steps", 60}, {"solidify_steps", 30}};
    recipe_ = *ParseRecipe(json, "test");
    for (const DmcStage stage : kStages) stages_.push_back(RecipeOfStage(recipe_, stage));
  }
  // The checkpoint of a model that has learned the text.
  std::string TrainBase() {
    const auto base = MakeTrainer(recipes_[0]);
    Run(base.get(), 1000);
    base_bpb_ = base->curve().back().validation_bpb;
    const std::string path = directory_ + "/base.pt";
    EXPECT_TRUE(base->SaveCheckpoint(path).ok());
    return path;
  }
  std::unique_ptr<Trainer> MakeStage(DmcStage stage) {
    auto trainer =
        Trainer::Create(&stages_[static_cast<int>(stage)], corpus_.get(), {.dmc_stage = stage});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return *std::move(trainer);
  }

  static constexpr DmcStage kStages[] = {DmcStage::kZeroOut, DmcStage::kRamp, DmcStage::kSolidify};
  double base_bpb_ = 0;
  TrainingRecipe recipe_;
  std::vector<TrainingRecipe> stages_;
};

TEST_F(DmcTrainerTest, ReachesItsTargetAndKeepsWhatTheModelLearned) {
  std::string from = TrainBase();
  for (const DmcStage stage : kStages) {
    const auto trainer = MakeStage(stage);
    ASSERT_TRUE(trainer->StartFrom(from).ok());
    Run(trainer.get(), 1000);
    EXPECT_EQ(trainer->step(), recipe_.dmc->n_steps(stage));
    const LossPoint& last = trainer->curve().back();
    EXPECT_LT(last.validation_bpb, base_bpb_ + 0.2) << NameOf(stage);
    if (stage == DmcStage::kZeroOut) {
      EXPECT_LT(last.kept_share, 0);
    } else {
      EXPECT_LT(last.kept_share, 0.58) << NameOf(stage);
    }
    from = directory_ + "/" + NameOf(stage) + ".pt";
    ASSERT_TRUE(trainer->SaveCheckpoint(from).ok());
  }
}

TEST_F(DmcTrainerTest, TheHingeGrowsByWhatIsAboveTheTarget) {
  stages_[1].dmc->hinge_growth = 0.5;
  const auto trainer = MakeStage(DmcStage::kRamp);
  ASSERT_TRUE(trainer->StartFrom(TrainBase()).ok());
  Run(trainer.get(), 30);
  double weight = 1;
  for (const LossPoint& point : trainer->curve()) {
    const double target = recipe_.dmc->TargetAt(DmcStage::kRamp, point.step - 1);
    weight = std::max(1.0, weight + 0.5 * (point.kept_share - 1 / target));
  }
  EXPECT_GT(weight, 1.1);
  EXPECT_DOUBLE_EQ(trainer->hinge_weight(), weight);
  // The next stage goes on with it.
  const std::string path = directory_ + "/ramp.pt";
  ASSERT_TRUE(trainer->SaveCheckpoint(path).ok());
  const auto next = MakeStage(DmcStage::kSolidify);
  ASSERT_TRUE(next->StartFrom(path).ok());
  EXPECT_DOUBLE_EQ(next->hinge_weight(), weight);
}

TEST_F(DmcTrainerTest, AnInterruptedStageTakesTheSameSteps) {
  stages_[1].dmc->hinge_growth = 0.5;
  const auto whole = MakeStage(DmcStage::kRamp), first = MakeStage(DmcStage::kRamp);
  const std::string base = TrainBase();
  for (Trainer* trainer : {whole.get(), first.get()}) ASSERT_TRUE(trainer->StartFrom(base).ok());
  Run(whole.get(), 12);
  Run(first.get(), 5);
  const std::string path = directory_ + "/half.pt";
  ASSERT_TRUE(first->SaveCheckpoint(path).ok());
  const auto second = MakeStage(DmcStage::kRamp);
  ASSERT_TRUE(second->LoadCheckpoint(path).ok());
  Run(second.get(), 7);
  ASSERT_EQ(second->step(), 12);
  for (size_t i = 0; i < whole->decoder().parameters().size(); ++i) {
    const auto& [name, tensor] = whole->decoder().parameters()[i];
    EXPECT_TRUE(torch::equal(tensor, second->decoder().parameters()[i].second)) << name;
  }
  EXPECT_EQ(whole->curve().back().kept_share, second->curve().back().kept_share);
  EXPECT_EQ(whole->hinge_weight(), second->hinge_weight());
  // Another stage is another run.
  EXPECT_EQ(MakeStage(DmcStage::kSolidify)->LoadCheckpoint(path).code(),
            StatusCode::kInvalidArgument);
}

// A model that is kept on the way is folded; what goes on training is not.
TEST_F(DmcTrainerTest, TheTrainedModelIsAFoldedCopy) {
  const auto plain = MakeStage(DmcStage::kRamp);
  EXPECT_TRUE(plain->TrainedModel().parameters()[0].second.is_same(
      plain->decoder().parameters()[0].second));
  stages_[1].dmc->variant.uniform_weights = true;
  const auto trainer = MakeStage(DmcStage::kRamp);
  const Decoder model = trainer->TrainedModel();
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const auto& [name, folded] = model.parameters()[i];
    const Tensor& trained = trainer->decoder().parameters()[i].second;
    if (!name.ends_with("q_proj.weight")) {
      EXPECT_TRUE(torch::equal(folded, trained)) << name;
      continue;
    }
    const int64_t last = trainer->decoder().config().head_dim - 1;
    EXPECT_EQ(folded[last].abs().sum().item<double>(), 0) << name;
    EXPECT_GT(trained[last].abs().sum().item<double>(), 0) << name;
  }
}

TEST_F(DmcTrainerTest, AFoldedVariantComputesTheSame) {
  for (const DmcVariant variant :
       {DmcVariant{.shares_decisions = true}, {.uniform_weights = true}}) {
    ModelConfig config = recipe_.model;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.dmc->offset = 0;
    Decoder decoder(config, 4, torch::kDouble, torch::kCPU);
    const torch::NoGradGuard no_grad;
    const Tensor tokens = torch::arange(30, torch::kLong).view({1, 30});
    const auto hidden = [&](DmcVariant as) {
      DmcPass pass(*config.dmc, {.decisions = DmcDecisions::kHard, .variant = as});
      return decoder.Hidden(tokens, torch::kDouble, &pass);
    };
    const Tensor expected = hidden(variant);
    EXPECT_GT((hidden({}) - expected).abs().max().item<double>(), 1e-9);
    FoldVariant(variant, *config.dmc, &decoder);
    EXPECT_LT((hidden({}) - expected).abs().max().item<double>(), 1e-12);
  }
}

}  // namespace
}  // namespace kvlathe
