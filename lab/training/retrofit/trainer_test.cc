// Trainer: what it learns, checkpoints, what it refuses.
#include "training/retrofit/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "io/files.h"
#include "training/retrofit/model_directory.h"
#include "training/retrofit/testing/trainer_fixture.h"

namespace kvlathe {
namespace {

using torch::Tensor;

TEST_F(TrainerTest, LearnsATextThatCanBeLearned) {
  for (const TrainingRecipe& recipe : recipes_) {
    const auto trainer = MakeTrainer(recipe);
    Run(trainer.get(), 1000);
    EXPECT_EQ(trainer->step(), 60);
    EXPECT_EQ(trainer->tokens(), 30720);
    EXPECT_EQ(trainer->progress(), 1);
    const std::vector<LossPoint>& curve = trainer->curve();
    EXPECT_NEAR(curve.front().loss, std::log(40), 0.3);
    EXPECT_LT(curve.back().loss, 0.5);
    EXPECT_EQ(curve.front().context, 16);
    EXPECT_EQ(curve.back().context, 32);
    EXPECT_LT(curve[8].validation_bpb, 0);
    EXPECT_GT(curve[9].validation_bpb, curve.back().validation_bpb);
    // Two bytes a token; the first token of a window can only be guessed from BOS.
    EXPECT_LT(curve.back().validation_bpb, 0.5);
  }
}

// Nothing of the text is learned where the teacher weighs a thousand times as much, and the student
// comes close to a teacher of other random weights.
TEST_F(TrainerTest, LearnsATeachersDistributions) {
  const Decoder teacher(recipes_[0].model, 77, torch::kFloat, torch::kCPU);
  const std::string model = directory_ + "/teacher";
  ASSERT_TRUE(SaveDecoder(teacher, DType::kF32, model).ok());
  TrainingRecipe recipe = recipes_[0];
  recipe.distillation = 1000;
  const auto trainer = MakeTrainer(recipe);
  ASSERT_TRUE(trainer->SetTeacher(model).ok());
  const Tensor tokens = torch::arange(3, 19).unsqueeze(0);
  const auto divergence = [&] {
    const torch::NoGradGuard no_grad;
    const auto logits = [&](const Decoder& decoder) {
      return decoder.Logits(decoder.Hidden(tokens, torch::kFloat, nullptr));
    };
    return KlDivergence(logits(teacher), logits(trainer->decoder())).mean().item<double>();
  };
  const double before = divergence();
  Run(trainer.get(), 1000);
  EXPECT_LT(divergence(), before / 5);
  // The curve is the text's log-likelihood.
  EXPECT_GT(trainer->curve().back().loss, std::log(40) - 0.7);
  ModelConfig other = recipe.model;
  other.vocab_size = 50;
  ASSERT_TRUE(SaveDecoder({other, 1, torch::kFloat, torch::kCPU}, DType::kF32, model).ok());
  const Status status = trainer->SetTeacher(model);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(status),
            model + ": a vocabulary of 50 tokens; a teacher of this model has 40");
}

// The first loss of a run on rows of the same 16 tokens after BOS, of which row i learns those at
// the places learned[i].
double FirstLoss(const std::string& directory, const std::vector<std::set<int>>& learned) {
  std::vector<uint32_t> rows;
  for (const std::set<int>& places : learned) {
    for (int t = 0; t < 17; ++t) {
      const uint32_t id = t == 0 ? 1 : 3 + t * t % 31;
      rows.push_back(places.contains(t) ? id : id | kNotLearned);
    }
  }
  CorpusInfo info;
  info.vocab_size = 40;
  info.bos_id = 1;
  info.sources["rows"] = {"rows.u16", 17, static_cast<int64_t>(rows.size()), 600};
  std::filesystem::create_directories(directory);
  std::string bytes;
  AppendTokens(rows, info.vocab_size, &bytes);
  EXPECT_TRUE(WriteFileAtomically(directory + "/rows.u16", bytes).ok());
  EXPECT_TRUE(WriteCorpusInfo(directory, info).ok());
  auto corpus = Corpus::Open(directory);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  nlohmann::json json = RecipeJson(false, "llama");
  json["phases"] = {{{"context", 16}, {"share", 1}, {"mixture", {{"rows", 1}}}}};
  json.erase("validation_source");
  const auto recipe = ParseRecipe(json, "test");
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  auto trainer = Trainer::Create(&*recipe, &*corpus, {});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_TRUE((*trainer)->Step().ok());
  return (*trainer)->curve().front().loss;
}

TEST_F(TrainerTest, LearnsMarkedTokensOnlyAndCountsRowsAlike) {
  const std::string directory = directory_ + "/marked";
  const auto loss = [&](const std::vector<std::set<int>>& learned) {
    return FirstLoss(directory, learned);
  };
  const double third = loss({{3}, {3}}), ninth = loss({{9}, {9}}), last = loss({{16}, {16}});
  EXPECT_GT(std::abs(third - ninth), 1e-3) << "two tokens of one loss would prove nothing";
  EXPECT_NEAR(loss({{3, 9, 16}, {3, 9, 16}}), (third + ninth + last) / 3, 1e-6);
  // A row of one learned token counts as much as one of two; one of none adds nothing.
  EXPECT_NEAR(loss({{3}, {9, 16}}), (third + (ninth + last) / 2) / 2, 1e-6);
  EXPECT_NEAR(loss({{3}, {}}), third / 2, 1e-6);
}

// The second half of a run from a checkpoint equals the uninterrupted run in every bit.
TEST_F(TrainerTest, ResumesBitForBit) {
  for (const TrainingRecipe& recipe : recipes_) {
    const auto whole = MakeTrainer(recipe);
    Run(whole.get(), 45);
    const auto first = MakeTrainer(recipe);
    Run(first.get(), 25);
    const std::string path = directory_ + "/checkpoint.pt";
    ASSERT_TRUE(first->SaveCheckpoint(path).ok());

    const auto second = MakeTrainer(recipe);
    const Status loaded = second->LoadCheckpoint(path);
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(second->step(), 25);
    Run(second.get(), 20);
    ASSERT_EQ(second->curve().size(), whole->curve().size());
    for (size_t i = 0; i < whole->curve().size(); ++i) {
      EXPECT_EQ(second->curve()[i].loss, whole->curve()[i].loss) << i;
      EXPECT_EQ(second->curve()[i].validation_bpb, whole->curve()[i].validation_bpb) << i;
    }
    for (size_t i = 0; i < whole->decoder().parameters().size(); ++i) {
      const auto& [name, tensor] = whole->decoder().parameters()[i];
      EXPECT_TRUE(torch::equal(tensor, second->decoder().parameters()[i].second)) << name;
    }
  }
}

TEST_F(TrainerTest, RefusesDamagedCheckpoints) {
  const auto trainer = MakeTrainer(recipes_[0]);
  Run(trainer.get(), 2);
  const std::string path = directory_ + "/checkpoint.pt";
  ASSERT_TRUE(trainer->SaveCheckpoint(path).ok());
  const std::string whole = *ReadTextFile(path);
  for (const size_t length : {size_t{0}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    ASSERT_TRUE(WriteFileAtomically(path, whole.substr(0, length)).ok());
    const Status status = MakeTrainer(recipes_[0])->LoadCheckpoint(path);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length << " bytes: " << status;
  }
  EXPECT_EQ(MakeTrainer(recipes_[0])->LoadCheckpoint(directory_ + "/none").code(),
            StatusCode::kNotFound);
  EXPECT_FALSE(trainer->SaveCheckpoint(directory_ + "/missing/checkpoint.pt").ok());
}

// A model whose cache is pooled learns around it: better than one that is pooled afterwards.
TEST_F(TrainerTest, LearnsToLiveWithAPooledCache) {
  nlohmann::json json = RecipeJson(false, "llama");
  const auto train = [&](Trainer* trainer) {
    Run(trainer, 1000);
    return trainer->curve().back().validation_bpb;
  };
  json["pool"] = {{"n", 4}};
  const TrainingRecipe pooled = *ParseRecipe(json, "test");
  const auto with = MakeTrainer(pooled), without = MakeTrainer(recipes_[0]);
  const double trained = train(with.get());
  train(without.get());
  const std::string path = directory_ + "/plain.pt";
  ASSERT_TRUE(without->SaveCheckpoint(path).ok());
  const auto afterwards = MakeTrainer(pooled);
  EXPECT_EQ(afterwards->LoadCheckpoint(path).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(afterwards->StartFrom(path).ok());
  EXPECT_LT(trained, afterwards->Validate() - 0.01);
  EXPECT_LT(with->curve().back().kept_share, 0) << "nothing is decided";
}

// What is not trained is what it was in every bit, and costs neither gradients nor moments.
TEST_F(TrainerTest, TrainsAttentionAlone) {
  for (const auto& [muon, model_type] : {std::pair{false, "llama"}, {true, "gpt2"}}) {
    nlohmann::json json = RecipeJson(muon, model_type);
    const TrainingRecipe all = *ParseRecipe(json, "test");
    json["trained"] = "attention";
    const TrainingRecipe recipe = *ParseRecipe(json, "test");
    const auto trainer = MakeTrainer(recipe);
    std::vector<Tensor> before;
    for (const auto& [name, parameter] : trainer->decoder().parameters()) {
      before.push_back(parameter.detach().clone());
    }
    Run(trainer.get(), 8);
    EXPECT_LT(trainer->curve().back().loss, trainer->curve().front().loss - 0.02);
    const Decoder& decoder = trainer->decoder();
    int n_moved = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const auto& [name, parameter] = decoder.parameters()[i];
      const bool is_of_attention = name.find("attn.") != name.npos;
      EXPECT_EQ(torch::equal(before[i], parameter), !is_of_attention) << name;
      EXPECT_EQ(parameter.requires_grad(), is_of_attention) << name;
      EXPECT_FALSE(parameter.grad().defined()) << name;
      n_moved += is_of_attention ? 1 : 0;
    }
    EXPECT_EQ(n_moved, 8) << "two layers of Q, K, V and O, or of two matrices with biases";
    const auto of_all = MakeTrainer(all);
    EXPECT_LT(decoder.FlopsPerToken(16), of_all->decoder().FlopsPerToken(16));
    const std::string path = directory_ + "/attention.pt", whole = directory_ + "/all.pt";
    ASSERT_TRUE(trainer->SaveCheckpoint(path).ok());
    Run(of_all.get(), 8);
    ASSERT_TRUE(of_all->SaveCheckpoint(whole).ok());
    EXPECT_LT(std::filesystem::file_size(path), 0.75 * std::filesystem::file_size(whole));
    EXPECT_EQ(MakeTrainer(all)->LoadCheckpoint(path).code(), StatusCode::kInvalidArgument);
    const auto resumed = MakeTrainer(recipe);
    ASSERT_TRUE(resumed->LoadCheckpoint(path).ok());
    for (Trainer* one : {resumed.get(), trainer.get()}) Run(one, 3);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(
          torch::equal(decoder.parameters()[i].second, resumed->decoder().parameters()[i].second));
    }
  }
}

TEST_F(TrainerTest, TimeBudgetEndsTheRun) {
  TrainerOptions options;
  options.budget_seconds = 1;
  auto trainer = Trainer::Create(&recipes_[0], corpus_.get(), options);
  ASSERT_TRUE(trainer.ok());
  Run(trainer->get(), 100000);
  EXPECT_TRUE((*trainer)->is_done());
  EXPECT_GE((*trainer)->seconds(), 1);
  // Wherever in the last half of the time the last step began.
  EXPECT_LT((*trainer)->curve().back().learning_rate, 0.6 * recipes_[0].optimizer.learning_rate);
}

// What went wrong is said, and the last good checkpoint stays.
TEST_F(TrainerTest, StopsWhenTheLossIsNotANumber) {
  const auto trainer = MakeTrainer(recipes_[0]);
  Run(trainer.get(), 3);
  const std::string path = directory_ + "/checkpoint.pt";
  ASSERT_TRUE(trainer->SaveCheckpoint(path).ok());
  const std::string good = *ReadTextFile(path);
  {
    const torch::NoGradGuard no_grad;
    Tensor(trainer->decoder().parameters()[4].second)[0][3] = NAN;
  }
  const Status status = trainer->Step();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(MessageOf(status),
            "step 4, micro batch 1 of 2: the loss is nan, as "
            "'model.layers.0.self_attn.v_proj.weight' is not finite; lower the learning rate");
  EXPECT_EQ(trainer->step(), 3);
  EXPECT_EQ(trainer->SaveCheckpoint(path).code(), StatusCode::kDataLoss);
  EXPECT_EQ(*ReadTextFile(path), good);
  EXPECT_TRUE(MakeTrainer(recipes_[0])->LoadCheckpoint(path).ok());
}

// Large values and a small output projection: the loss is finite, the squared gradient is not.
TEST_F(TrainerTest, StopsWhenGradientsStayInfinite) {
  const auto trainer = MakeTrainer(recipes_[0]);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : trainer->decoder().parameters()) {
      if (name.ends_with("v_proj.weight")) Tensor(parameter).mul_(1e30);
      if (name.ends_with("o_proj.weight")) Tensor(parameter).mul_(1e-30);
    }
  }
  Run(trainer.get(), 9);
  EXPECT_EQ(trainer->step(), 9);
  const Status status = trainer->Step();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(MessageOf(status).find("step 10: the gradients of 10 steps"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
