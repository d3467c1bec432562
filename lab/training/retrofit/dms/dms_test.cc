// Heads of Dynamic Memory Sparsification: what they hide, how they begin, and that they alone are
// trained.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "training/retrofit/dms/dms_fit.h"
#include "training/retrofit/dms/dms_heads.h"
#include "training/retrofit/dms/dms_pass.h"
#include "training/retrofit/testing/gradient_check.h"
#include "training/retrofit/testing/small_decoder.h"
#include "training/retrofit/testing/trainer_fixture.h"

namespace kvlathe {
namespace {

using torch::Tensor;

// Every element against the formula, with distances below, at and above a block of rows.
TEST(Dms, FarColumnsOfAttentionEqualTheFormula) {
  torch::manual_seed(7);
  const int64_t n = 300;
  const Tensor q = torch::randn({1, 2, 2, n, 8}, Double());
  const Tensor k = torch::randn({1, 2, n, 8}, Double());
  const Tensor v = torch::randn({1, 2, n, 8}, Double());
  const Tensor bias = torch::randn({1, 2, n}, Double()) * 3;
  for (const int64_t distance : {1, 5, 100, 256, 280, 400}) {
    const Tensor out = CausalAttention(q, k, v, {.bias = bias, .distance = distance});
    for (const int64_t row : {0, 1, 99, 100, 255, 256, 280, 299}) {
      Tensor scores =
          torch::matmul(q[0][1][1][row], k[0][1].narrow(0, 0, row + 1).t()) / std::sqrt(8.0);
      const int64_t n_far = std::max<int64_t>(0, row - distance + 1);
      scores.narrow(0, 0, n_far).add_(bias[0][1].narrow(0, 0, n_far));
      const Tensor expected =
          torch::matmul(torch::softmax(scores, 0), v[0][1].narrow(0, 0, row + 1));
      EXPECT_LT((out[0][1][1][row] - expected).abs().max().item<double>(), 1e-12)
          << row << " at " << distance;
    }
  }
}

TEST(Dms, FarColumnsHaveTheirGradient) {
  torch::manual_seed(14);
  const int64_t n = 300;
  const Tensor q = torch::randn({1, 1, 2, n, 4}, Double());
  Tensor k = torch::randn({1, 1, n, 4}, Double()).set_requires_grad(true);
  Tensor bias = torch::randn({1, 1, n}, Double()).set_requires_grad(true);
  const Tensor v = torch::randn({1, 1, n, 4}, Double());
  const auto loss = [&] { return Weigh(CausalAttention(q, k, v, {.bias = bias, .distance = 40})); };
  CheckGradient(loss, k, 10);
  CheckGradient(loss, bias, 20);
}

// What a column costs against its removal from single rows, to the first order.
TEST(Dms, CostsOfColumnsAreWhatTheirRemovalChanges) {
  torch::manual_seed(5);
  const int64_t n = 12, distance = 3;
  const Tensor q = torch::randn({1, 1, 2, n, 4}, Double()).set_requires_grad(true);
  const Tensor k = torch::randn({1, 1, n, 4}, Double());
  const Tensor v = torch::randn({1, 1, n, 4}, Double());
  const Tensor direction = torch::randn({1, 1, 2, n, 4}, Double());
  const Tensor cost = torch::zeros({1, 1, n}, torch::kFloat);
  (CausalAttention(q, k, v, {.cost = cost, .cost_distance = distance}) * direction)
      .sum()
      .backward();
  const torch::NoGradGuard no_grad;
  const Tensor whole = CausalAttention(q, k, v);
  for (int64_t j = 0; j < n; ++j) {
    const Tensor bias = torch::zeros({1, 1, n}, Double());
    bias[0][0][j] = kMaskedScore;
    const Tensor changed = CausalAttention(q, k, v, {.bias = bias, .distance = distance}) - whole;
    const Tensor of_rows = (changed * direction).sum({0, 1, 2, 4});  // over the group as well
    EXPECT_NEAR(cost[0][0][j].item<double>(), of_rows.square().sum().item<double>(), 1e-5) << j;
  }
}

DmsRecipe SmallDms() {
  DmsRecipe recipe;
  recipe.window = 6;
  recipe.n_sink = 2;
  recipe.offset = 0.5;
  return recipe;
}

Decoder WithRandomHeads(const ModelConfig& config) {
  Decoder decoder(config, 3, torch::kDouble, torch::kCPU);
  decoder.AddDmsHeads();
  torch::manual_seed(9);
  const torch::NoGradGuard no_grad;
  for (const DmsHead& head : decoder.dms_heads()) {
    Tensor(head.weight).copy_(torch::randn(head.weight.sizes(), Double()) * 0.01);
    Tensor(head.bias).copy_(torch::randn(head.bias.sizes(), Double()) * 0.01);
  }
  return decoder;
}

TEST(Dms, APositionDecidesOnTheOneBefore) {
  const DmsRecipe recipe = SmallDms();
  const Decoder decoder = WithRandomHeads(SmallDecoder(true));
  const torch::NoGradGuard no_grad;
  const int64_t n = 20;
  const Tensor residual = torch::randn({2, n, 32}, Double());
  DmsPass pass(&decoder.dms_heads(), &recipe, {.is_hard = true});
  pass.Observe(residual);
  const Tensor rows = torch::zeros({2, n, 2, 4}, Double());
  const MergePass::Merged merged = pass.Merge(rows, rows, rows);
  EXPECT_EQ(merged.effects.distance, 6);
  const DmsHead& head = decoder.dms_heads()[0];
  int n_leave = 0, n_far_leave = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t j = 0; j < n; ++j) {
        bool leaves = false;
        if (j >= 2 && j + 1 < n) {
          const Tensor x = residual[b][j + 1];
          const Tensor normed = x / (x.square().mean() + 1e-5).sqrt();
          leaves = 100 * (normed.dot(head.weight[h]) + head.bias[h]).item<double>() - 0.5 > 0;
        }
        n_leave += leaves;
        n_far_leave += leaves && j < n - 6;
        EXPECT_EQ(merged.effects.bias[b][h][j].item<double>(), leaves ? kMaskedScore : 0) << j;
      }
    }
  }
  EXPECT_GT(n_leave, 10);
  // Of those behind the sinks that some query does not see.
  EXPECT_EQ(pass.Alpha().sizes().vec(), (std::vector<int64_t>{1, 2, 2, n - 6 - 2}));
  EXPECT_EQ(pass.Alpha().sum().item<double>(), n_far_leave);
}

// In a model of one layer that drops all it may, a token is seen by its window, and a sink by all.
TEST(Dms, WhatLeavesIsSeenByItsWindowAlone) {
  ModelConfig config = SmallDecoder(true);
  config.n_layers = 1;
  DmsRecipe recipe = SmallDms();
  recipe.offset = -1;  // heads of zeros drop everything
  Decoder decoder(config, 3, torch::kDouble, torch::kCPU);
  decoder.AddDmsHeads();
  const torch::NoGradGuard no_grad;
  const auto hidden = [&](int64_t changed) {
    const Tensor tokens = torch::arange(20, torch::kLong).view({1, 20}).clone();
    if (changed >= 0) tokens[0][changed] = 40;
    DmsPass pass(&decoder.dms_heads(), &recipe, {.is_hard = true});
    return decoder.Hidden(tokens, torch::kDouble, &pass);
  };
  const Tensor before = hidden(-1);
  for (const int64_t j : {1, 2, 5, 12}) {
    const Tensor change = (hidden(j) - before).abs().amax(1);
    for (int64_t i = 0; i < 20; ++i) {
      const bool is_seen = i >= j && (j < 2 || i < j + 6);
      EXPECT_EQ(change[i].item<double>() > 1e-9, is_seen) << i << " of " << j;
    }
  }
}

TEST(Dms, KeepsWhatTheCompressionLeavesBesideTheWindow) {
  DmsRecipe recipe;
  recipe.window = 96;
  recipe.n_sink = 4;
  recipe.compression = 4;
  EXPECT_DOUBLE_EQ(recipe.KeptShare(1000), 150.0 / 900);
  EXPECT_DOUBLE_EQ(recipe.KeptShare(300), 0);
  EXPECT_DOUBLE_EQ(recipe.KeptShare(100), 1);
}

TEST(Dms, ARecipeHasOneWayOfFewerEntries) {
  nlohmann::json json = RecipeJson(false, "llama");
  json["dms"] = {{"window", 4}, {"compression", 3}};
  ASSERT_TRUE(ParseRecipe(json, "r").ok());
  EXPECT_EQ(ParseRecipe(json, "r")->dms->window, 4);
  json["pool"] = {{"n", 2}};
  EXPECT_EQ(MessageOf(ParseRecipe(json, "r").status()),
            "r: \"dmc\", \"dms\" and \"pool\" do not go together; keep one of them");
  json.erase("pool");
  json["dms"]["windows"] = 4;
  EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument);
}

class DmsTrainerTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    nlohmann::json json = RecipeJson(false, "llama");
    json["optimizer"] = {{"learning_rate", 0.003}, {"weight_decay", 0}};
    json["phases"] = {{{"context", 32}, {"share", 1}, {"mixture", {{"text", 1}}}}};
    json["dms"] = {{"window", 4},        {"sink", 1},      {"compression", 2},
                   {"fit_tokens", 1024}, {"fit_steps", 4}, {"hinge_weight", 0.5},
                   {"hinge_growth", 0.5}};
    recipe_ = *ParseRecipe(json, "test");
  }
  // The heads of a model that has learned the text.
  std::unique_ptr<Trainer> MakeFitted() {
    auto trainer = MakeTrainer(recipe_);
    LearnText(trainer->mutable_decoder());
    const Status fitted = trainer->FitDmsHeads(nullptr);
    EXPECT_TRUE(fitted.ok()) << fitted;
    return trainer;
  }
  void LearnText(Decoder* decoder) {
    if (learned_ == nullptr) {
      learned_ = MakeTrainer(recipes_[0]);
      Run(learned_.get(), 1000);
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < learned_->decoder().parameters().size(); ++i) {
      Tensor(decoder->parameters()[i].second).copy_(learned_->decoder().parameters()[i].second);
    }
  }
  // Of the positions that may leave, those that stay, decided as the engine does.
  double KeptShare(const Decoder& decoder, const DmsRecipe& recipe) {
    const torch::NoGradGuard no_grad;
    DmsPass pass(&decoder.dms_heads(), &recipe, {.is_hard = true});
    const Tensor tokens = torch::arange(512, torch::kLong).mul(7).remainder(37).add(3);
    decoder.Hidden(tokens.view({16, 32}), torch::kFloat, &pass);
    return 1 - pass.Alpha().mean().item<double>();
  }

  TrainingRecipe recipe_;
  std::unique_ptr<Trainer> learned_;
};

TEST_F(DmsTrainerTest, FittedHeadsKeepTheShareOfTheirCompression) {
  const auto trainer = MakeFitted();
  const double target = recipe_.dms->KeptShare(32);  // 16 - 5 of 27
  EXPECT_NEAR(target, 11.0 / 27, 1e-12);
  EXPECT_NEAR(KeptShare(trainer->decoder(), *recipe_.dms), target, 0.15);
  const auto calibrated = trainer->CalibratedDms();
  ASSERT_TRUE(calibrated.ok()) << calibrated.status();
  EXPECT_NEAR(KeptShare(trainer->decoder(), *calibrated), target, 0.1);
  DmsRecipe less = *calibrated;
  less.offset -= 2;
  EXPECT_LT(KeptShare(trainer->decoder(), less), target - 0.1);
}

TEST_F(DmsTrainerTest, HeadsAloneMoveAndTheModelStays) {
  const auto trainer = MakeFitted();
  std::vector<Tensor> before;
  for (const auto& [name, tensor] : trainer->decoder().parameters()) {
    before.push_back(tensor.detach().clone());
  }
  Run(trainer.get(), 3);
  int n_moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const auto& [name, tensor] = trainer->decoder().parameters()[i];
    const bool may_move = IsOfDmsHead(name) && !name.ends_with("norm.weight");
    EXPECT_EQ(tensor.requires_grad(), may_move) << name;
    if (!may_move) EXPECT_TRUE(torch::equal(tensor, before[i])) << name;
    n_moved += !torch::equal(tensor, before[i]);
  }
  EXPECT_EQ(n_moved, 4);  // weight and bias of two layers
  EXPECT_GT(trainer->curve().back().kept_share, 0.1);
}

// Heads of zeros keep nearly all there is.
TEST_F(DmsTrainerTest, StepsReachTheTargetAndTheModelStaysCloseToItself) {
  const auto trainer = MakeTrainer(recipe_);
  LearnText(trainer->mutable_decoder());
  Run(trainer.get(), 1000);
  const std::vector<LossPoint>& curve = trainer->curve();
  ASSERT_EQ(curve.size(), 60u);
  EXPECT_GT(curve.front().kept_share, 0.95);
  EXPECT_LT(curve.back().kept_share, recipe_.dms->KeptShare(32) + 0.1);
  EXPECT_LT(curve.back().loss, 0.02);
}

TEST_F(DmsTrainerTest, AnInterruptedRunTakesTheSameSteps) {
  const auto whole = MakeFitted(), first = MakeFitted();
  Run(whole.get(), 8);
  Run(first.get(), 3);
  const std::string path = directory_ + "/half.pt";
  ASSERT_TRUE(first->SaveCheckpoint(path).ok());
  const auto second = MakeTrainer(recipe_);
  LearnText(second->mutable_decoder());  // the checkpoint has heads alone
  ASSERT_TRUE(second->LoadCheckpoint(path).ok());
  Run(second.get(), 5);
  ASSERT_EQ(second->step(), 8);
  for (size_t i = 0; i < whole->decoder().parameters().size(); ++i) {
    const auto& [name, tensor] = whole->decoder().parameters()[i];
    EXPECT_TRUE(torch::equal(tensor, second->decoder().parameters()[i].second)) << name;
  }
  EXPECT_EQ(whole->hinge_weight(), second->hinge_weight());
  TrainingRecipe other = recipe_;
  other.dms->window = 5;
  EXPECT_EQ(MessageOf(MakeTrainer(other)->LoadCheckpoint(path)),
            path +
                ": the checkpoint is of another recipe: window is 4 there, 5 here; take its "
                "recipe and model, or another --out");
}

TEST_F(DmsTrainerTest, AWrittenFileReadsBack) {
  const auto trainer = MakeFitted();
  const auto calibrated = trainer->CalibratedDms();
  ASSERT_TRUE(calibrated.ok());
  const std::string path = directory_ + "/model.dms.safetensors";
  ASSERT_TRUE(WriteDmsHeads(trainer->decoder(), *calibrated, path).ok());
  const auto reader = MakeTrainer(recipe_);
  ASSERT_TRUE(ReadDmsHeads(path, *recipe_.dms, reader->mutable_decoder()).ok());
  for (size_t i = 0; i < trainer->decoder().dms_heads().size(); ++i) {
    const DmsHead &there = trainer->decoder().dms_heads()[i],
                  &here = reader->decoder().dms_heads()[i];
    EXPECT_GT(there.weight.abs().sum().item<double>(), 0);
    EXPECT_TRUE(torch::equal(there.weight.to(torch::kBFloat16).to(torch::kFloat), here.weight));
    // The offset that was calibrated is in the biases now.
    const Tensor moved =
        (here.bias - there.bias).mul(100) - (recipe_.dms->offset - calibrated->offset);
    EXPECT_LT(moved.abs().max().item<double>(), 1e-3);
    EXPECT_TRUE(torch::equal(there.norm, here.norm));
  }
  DmsRecipe other = *calibrated;
  other.window = 9;
  EXPECT_EQ(MessageOf(ReadDmsHeads(path, other, reader->mutable_decoder())),
            path + ": dms_window_size is 4 there, 9 in the recipe");
}

}  // namespace
}  // namespace kvlathe
