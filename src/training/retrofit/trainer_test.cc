#include "training/retrofit/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "io/files.h"

namespace kvlathe {
namespace {

using torch::Tensor;

nlohmann::json RecipeJson(bool muon, const char* model_type) {
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
void WriteCorpus(const std::string& directory) {
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

// The first loss of a run on rows of the same 16 tokens after BOS, of which row i learns those at
// the places learned[i].
double FirstLoss(const std::string& directory, const std::vector<std::set<int>>& learned) {
  std::vector<uint16_t> rows;
  for (const std::set<int>& places : learned) {
    for (int t = 0; t < 17; ++t) {
      const int id = t == 0 ? 1 : 3 + t * t % 31;
      rows.push_back(static_cast<uint16_t>(places.contains(t) ? id : id | kNotLearned));
    }
  }
  CorpusInfo info;
  info.vocab_size = 40;
  info.bos_id = 1;
  info.sources["rows"] = {"rows.u16", 17, static_cast<int64_t>(rows.size()), 600};
  std::filesystem::create_directories(directory);
  const std::string_view bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * 2);
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

TEST_F(TrainerTest, RefusesDamagedAndForeignCheckpoints) {
  const auto trainer = MakeTrainer(recipes_[0]);
  Run(trainer.get(), 2);
  const std::string path = directory_ + "/checkpoint.pt";
  ASSERT_TRUE(trainer->SaveCheckpoint(path).ok());
  for (const TrainingRecipe* other : {&recipes_[1], &recipes_[2]}) {
    EXPECT_EQ(MakeTrainer(*other)->LoadCheckpoint(path).code(), StatusCode::kInvalidArgument);
  }

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

// A retrofit of the model that learned the text, in few steps.
class DmcTrainerTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    const auto base = MakeTrainer(recipes_[0]);
    Run(base.get(), 1000);
    base_bpb_ = base->curve().back().validation_bpb;
    base_ = directory_ + "/base.pt";
    ASSERT_TRUE(base->SaveCheckpoint(base_).ok());
    nlohmann::json json = RecipeJson(false, "llama");
    json["optimizer"] = {{"learning_rate", 0.005}, {"final_share", 0.1}, {"warmup_share", 0}};
    json["phases"] = {{{"context", 32}, {"share", 1}, {"mixture", {{"text", 1}}}}};
    json["dmc"] = {
        {"compression", 2}, {"zero_out_steps", 10}, {"ramp_steps", 60}, {"solidify_steps", 30}};
    recipe_ = *ParseRecipe(json, "test");
    for (const DmcStage stage : kStages) stages_.push_back(RecipeOfStage(recipe_, stage));
  }
  std::unique_ptr<Trainer> MakeStage(DmcStage stage) {
    auto trainer =
        Trainer::Create(&stages_[static_cast<int>(stage)], corpus_.get(), {.dmc_stage = stage});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return *std::move(trainer);
  }

  static constexpr DmcStage kStages[] = {DmcStage::kZeroOut, DmcStage::kRamp, DmcStage::kSolidify};
  std::string base_;
  double base_bpb_ = 0;
  TrainingRecipe recipe_;
  std::vector<TrainingRecipe> stages_;
};

TEST_F(DmcTrainerTest, ReachesItsTargetAndKeepsWhatTheModelLearned) {
  std::string from = base_;
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

TEST_F(DmcTrainerTest, AnInterruptedStageTakesTheSameSteps) {
  const auto whole = MakeStage(DmcStage::kRamp), first = MakeStage(DmcStage::kRamp);
  for (Trainer* trainer : {whole.get(), first.get()}) ASSERT_TRUE(trainer->StartFrom(base_).ok());
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

TEST_F(TrainerTest, StopsWhenTheLossIsNotANumber) {
  const auto trainer = MakeTrainer(recipes_[0]);
  {
    const torch::NoGradGuard no_grad;
    Tensor(trainer->decoder().parameters()[0].second).fill_(NAN);
  }
  EXPECT_EQ(trainer->Step().code(), StatusCode::kDataLoss);
}

TEST(Orthogonalise, BringsSingularValuesNearOne) {
  torch::manual_seed(3);
  for (const auto& [rows, columns] : {std::pair{20, 50}, {50, 20}, {30, 30}}) {
    const Tensor g = torch::randn({rows, columns}, torch::kDouble);
    const Tensor o = Orthogonalise(g, torch::kDouble);
    const Tensor values = std::get<1>(torch::linalg_svd(o, false));
    EXPECT_LT(values.max().item<double>(), 1.25);
    // Five steps lift singular values above 1/100 of the largest; a square random matrix has one
    // or two below.
    EXPECT_GT(values[values.numel() - 4].item<double>(), 0.6);
    // The same singular vectors: o g^T is symmetric and positive.
    const Tensor product = torch::mm(o, g.t());
    EXPECT_LT((product - product.t()).abs().max().item<double>(), 1e-9);
  }
}

ModelConfig OneLayer() {
  ModelConfig config;
  config.model_type = "llama";
  config.n_layers = 1;
  config.hidden_dim = config.head_dim = config.ffn_dim = 16;
  config.n_heads = config.n_kv_heads = 1;
  config.vocab_size = 8;
  config.max_seq_len = 8;
  return config;
}

// Two steps of AdamW on one parameter against the published update.
TEST(Optimizer, AdamWFollowsTheFormula) {
  const Decoder decoder(OneLayer(), 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.clip_norm = 1e6;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  Tensor w = decoder.parameters()[0].second;
  const double lr = 0.01;
  double x = w[0][0].item<double>(), m = 0, v = 0;
  for (int step = 1; step <= 2; ++step) {
    for (const auto& [name, parameter] : decoder.parameters()) {
      Tensor(parameter).mutable_grad() = torch::full_like(parameter, 0.1 * step);
    }
    optimizer.Step(lr);
    const double g = 0.1 * step;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    x -= lr * 0.1 * x;
    x -= lr * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    EXPECT_NEAR(w[0][0].item<double>(), x, 1e-6) << step;
    EXPECT_FALSE(w.grad().defined()) << "gradients are left behind";
  }
}

TEST(Optimizer, ClipsAndLeavesOutStepsThatAreNotFinite) {
  const Decoder decoder(OneLayer(), 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.muon = true;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  const auto set_gradients = [&](double value) {
    for (const auto& [name, parameter] : decoder.parameters()) {
      Tensor(parameter).mutable_grad() = torch::full_like(parameter, value);
    }
  };
  std::vector<Tensor> before;
  for (const auto& [name, parameter] : decoder.parameters()) {
    before.push_back(parameter.detach().clone());
  }
  set_gradients(INFINITY);
  EXPECT_FALSE(std::isfinite(optimizer.Step(0.01)));
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i], decoder.parameters()[i].second));
  }
  set_gradients(2.0);
  EXPECT_NEAR(optimizer.Step(0.01), 2 * std::sqrt(static_cast<double>(decoder.n_parameters())),
              1e-3);
  // A constant gradient has one singular value, which the five steps take from 1 along the
  // polynomial; the move is that times 0.2 sqrt(16) x rate, whatever the gradient's size.
  double singular = 1;
  for (int i = 0; i < 5; ++i) {
    singular = 3.4445 * singular - 4.7750 * std::pow(singular, 3) + 2.0315 * std::pow(singular, 5);
  }
  const auto& [name, q] = decoder.parameters()[2];
  ASSERT_EQ(name, "model.layers.0.self_attn.q_proj.weight");
  const Tensor moved = before[2] * (1 - 0.01 * 0.1) - q.detach();
  EXPECT_NEAR(moved.norm().item<double>(), 0.01 * 0.2 * 4 * singular, 1e-5);
}

// In one matrix the small gradient of K would vanish beside that of Q.
TEST(Optimizer, MuonMovesThePartsOfAFusedProjectionAlike) {
  ModelConfig config = OneLayer();
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  const Decoder decoder(config, 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.muon = true;
  settings.weight_decay = 0;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  for (const auto& [name, parameter] : decoder.parameters()) {
    Tensor(parameter).mutable_grad() = torch::zeros_like(parameter);
  }
  const auto& [name, c_attn] = decoder.parameters()[4];
  ASSERT_EQ(name, "transformer.h.0.attn.c_attn.weight");
  const Tensor before = c_attn.detach().clone();
  const std::vector<Tensor> gradients = Tensor(c_attn).mutable_grad().chunk(3, 1);
  for (int i = 0; i < 3; ++i) Tensor(gradients[i]).fill_(std::pow(0.1, i));
  optimizer.Step(0.01);
  const std::vector<Tensor> moved = (before - c_attn.detach()).chunk(3, 1);
  const double of_q = moved[0].norm().item<double>();
  EXPECT_GT(of_q, 1e-3);
  for (int i = 1; i < 3; ++i) EXPECT_NEAR(moved[i].norm().item<double>(), of_q, 1e-3 * of_q) << i;
}

}  // namespace
}  // namespace kvlathe
