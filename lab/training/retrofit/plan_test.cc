// Recipes, the order of batches, and loss curves: what needs no tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/files.h"
#include "training/retrofit/batch_order.h"
#include "training/retrofit/fingerprint.h"
#include "training/retrofit/loss_curve.h"
#include "training/retrofit/recipe.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;

Json ValidRecipe() {
  return Json::parse(R"({
    "model": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
      "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
      "bos_token_id": 1, "eos_token_id": 2},
    "total_tokens": 1000, "batch_tokens": 64, "micro_batch_tokens": 32,
    "phases": [{"context": 8, "share": 0.25, "mixture": {"text": 3, "rows": 1}},
               {"context": 16, "share": 0.75, "mixture": {"text": 1}}],
    "validation_source": "text"})");
}

TEST(Recipe, SchedulesPhasesAndLearningRate) {
  auto recipe = ParseRecipe(ValidRecipe(), "r");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->PhaseIndexAt(0), 0);
  EXPECT_EQ(recipe->PhaseIndexAt(0.2499), 0);
  EXPECT_EQ(recipe->PhaseIndexAt(0.25), 1);
  EXPECT_EQ(recipe->PhaseIndexAt(1), 1);
  recipe->optimizer.learning_rate = 1;
  recipe->optimizer.warmup_share = 0.2;
  recipe->optimizer.final_share = 0.1;
  EXPECT_DOUBLE_EQ(recipe->LearningRateAt(0.05), 0.25);
  EXPECT_DOUBLE_EQ(recipe->LearningRateAt(0.2), 1);
  EXPECT_NEAR(recipe->LearningRateAt(0.6), 0.55, 1e-12);
  EXPECT_NEAR(recipe->LearningRateAt(1), 0.1, 1e-12);
}

Json DmcRecipeJson() {
  Json json = ValidRecipe();
  json["optimizer"] = {{"learning_rate", 0.5}, {"final_share", 0.1}, {"warmup_share", 0.2}};
  json["dmc"] = {
      {"compression", 3}, {"zero_out_steps", 4}, {"ramp_steps", 10}, {"solidify_steps", 5}};
  return json;
}

TEST(Recipe, StagesOfDmcHaveTheirLengthTargetAndRate) {
  const auto recipe = ParseRecipe(DmcRecipeJson(), "r");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const DmcRecipe& dmc = *recipe->dmc;
  ASSERT_TRUE(recipe->model.dmc.has_value());
  EXPECT_TRUE(recipe->model.dmc->is_last);
  EXPECT_EQ(recipe->model.dmc->weight_offset, 5);
  // The channel is gone with the last step of the first stage.
  EXPECT_DOUBLE_EQ(dmc.ChannelScaleAt(DmcStage::kZeroOut, 0), 0.75);
  EXPECT_DOUBLE_EQ(dmc.ChannelScaleAt(DmcStage::kZeroOut, 3), 0);
  EXPECT_DOUBLE_EQ(dmc.ChannelScaleAt(DmcStage::kRamp, 0), 0);
  EXPECT_DOUBLE_EQ(dmc.TargetAt(DmcStage::kZeroOut, 3), 1);
  EXPECT_DOUBLE_EQ(dmc.TargetAt(DmcStage::kRamp, 0), 1.1);
  EXPECT_DOUBLE_EQ(dmc.TargetAt(DmcStage::kRamp, 19), 3);
  EXPECT_DOUBLE_EQ(dmc.TargetAt(DmcStage::kSolidify, 0), 3);
  const TrainingRecipe zero_out = RecipeOfStage(*recipe, DmcStage::kZeroOut);
  EXPECT_EQ(zero_out.total_tokens, 4 * 64);
  EXPECT_DOUBLE_EQ(zero_out.LearningRateAt(0.1), 0.25);
  EXPECT_DOUBLE_EQ(zero_out.LearningRateAt(1), 0.5);
  const TrainingRecipe ramp = RecipeOfStage(*recipe, DmcStage::kRamp);
  EXPECT_EQ(ramp.total_tokens, 20 * 64);
  EXPECT_DOUBLE_EQ(ramp.LearningRateAt(0), 0.5);
  EXPECT_DOUBLE_EQ(ramp.LearningRateAt(1), 0.5);
  const TrainingRecipe solidify = RecipeOfStage(*recipe, DmcStage::kSolidify);
  EXPECT_EQ(solidify.total_tokens, 5 * 64);
  EXPECT_DOUBLE_EQ(solidify.LearningRateAt(0), 0.5);
  EXPECT_NEAR(solidify.LearningRateAt(1), 0.05, 1e-12);
}

TEST(Recipe, DmcKnowsItsVariantsAndTakesTheModelThatItRetrofits) {
  Json json = DmcRecipeJson();
  json["dmc"].update({{"channel", "first"},
                      {"hinge", "layer"},
                      {"hinge_weight", 10},
                      {"immediate", true},
                      {"save_at", {2, 2.5}}});
  json.erase("model");
  json.erase("total_tokens");
  EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument);
  const ModelConfig base = ParseRecipe(ValidRecipe(), "r")->model;
  const auto recipe = ParseRecipe(json, "r", &base);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->model.hidden_dim, base.hidden_dim);
  EXPECT_FALSE(recipe->dmc->config.is_last);
  EXPECT_FALSE(recipe->dmc->config.zeroes_after_rope);
  EXPECT_EQ(recipe->dmc->config.epsilon, 0);
  EXPECT_EQ(recipe->dmc->hinge, DmcHinge::kLayer);
  EXPECT_EQ(recipe->dmc->hinge_weight, 10);
  EXPECT_DOUBLE_EQ(recipe->dmc->TargetAt(DmcStage::kRamp, 0), 3);
  EXPECT_EQ(recipe->dmc->save_at, (std::vector<double>{2, 2.5}));
}

TEST(Recipe, PoolingIsAsTheEngineWouldPool) {
  Json json = ValidRecipe();
  json["pool"] = Json::object();
  const auto recipe = ParseRecipe(json, "r");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->pool->every, 4);
  EXPECT_EQ(recipe->pool->n_sink, 0);
  for (const Json& wrong :
       {Json{{"n", 1}}, Json{{"n", 65}}, Json{{"sink", -1}}, Json{{"every", 4}}}) {
    json["pool"] = wrong;
    const Status status = ParseRecipe(json, "r").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(MessageOf(status)).find("r, \"pool\""), std::string::npos) << status;
  }
  json = DmcRecipeJson();
  json["pool"] = {{"n", 2}};
  EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument);
}

TEST(Recipe, KnowsWhichWeightsAreTrained) {
  Json json = DmcRecipeJson();
  EXPECT_EQ(ParseRecipe(json, "r")->trained, TrainedWeights::kAll);
  EXPECT_EQ(ParseRecipe(json, "r")->dmc->deciding_rate, 1);
  json["trained"] = "attention";
  json["dmc"]["deciding_rate"] = 10;
  EXPECT_EQ(ParseRecipe(json, "r")->trained, TrainedWeights::kAttention);
  EXPECT_EQ(ParseRecipe(json, "r")->dmc->deciding_rate, 10);
  json["trained"] = "norms";
  EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument);
  json["trained"] = "all";
  json["dmc"]["deciding_rate"] = -1;
  EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument);
}

TEST(Recipe, KnowsTheStepsWhoseModelIsKept) {
  Json json = ValidRecipe();
  json["save_at_steps"] = {3, 100};
  EXPECT_EQ(ParseRecipe(json, "r")->save_at_steps, (std::vector<int64_t>{3, 100}));
  for (const Json& wrong : {Json(7), Json{0}, Json{-1}, Json{1.5}, Json{"3"}, Json{1 << 27}}) {
    json["save_at_steps"] = wrong;
    EXPECT_EQ(ParseRecipe(json, "r").status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(Fingerprint, SaysWhatDiffersAndWhatMatters) {
  const auto fingerprint = [](const Json& json, DmcStage stage) {
    return FingerprintOf(*ParseRecipe(json, "r"), stage);
  };
  const std::string ramp = fingerprint(DmcRecipeJson(), DmcStage::kRamp);
  EXPECT_EQ(CompareFingerprints(ramp, ramp, FingerprintUse::kGoOn).what, "");
  Json json = DmcRecipeJson();
  json["dmc"]["window"] = 7;
  json["dmc"]["deciding_rate"] = 10;
  json["dmc"]["hinge_weight"] = 3;
  json["dmc"]["hinge_growth"] = 0.5;
  json["distillation"] = 2;
  json["phases"][0]["mixture"]["rows"] = 2;
  const std::string other = fingerprint(json, DmcStage::kSolidify);
  const auto found = CompareFingerprints(ramp, other, FingerprintUse::kGoOn);
  EXPECT_FALSE(found.is_of_model);
  for (const char* part :
       {"window is 12 there, 7 here", "deciding_rate is 1 there, 10 here",
        "hinge_weight is 1 there, 3 here", "distillation is 0 there, 2 here",
        "hinge_growth is 0 there, 0.5 here", "stage is ramp there, solidify here",
        "phase 1 is \"8 0.25 rows:1 text:3\" there, \"8 0.25 "
        "rows:2 text:3\" here"}) {
    EXPECT_NE(found.what.find(part), std::string::npos) << found.what;
  }
  EXPECT_EQ(found.what.find("phase 2"), std::string::npos) << found.what;
  EXPECT_EQ(CompareFingerprints(ramp, other, FingerprintUse::kBegin).what, "");
  json["model"]["vocab_size"] = 90;
  const auto model =
      CompareFingerprints(ramp, fingerprint(json, DmcStage::kSolidify), FingerprintUse::kBegin);
  EXPECT_TRUE(model.is_of_model);
  EXPECT_EQ(model.what, "vocab_size is 100 there, 90 here");
  EXPECT_TRUE(CompareFingerprints("", ramp, FingerprintUse::kBegin).is_of_model);
}

// The committed recipe fits the model that it is for, and ends within what its documentation says.
TEST(Recipe, TheRecipeOfSmolLm2IsRead) {
  ModelConfig base;
  base.model_type = "llama";
  base.vocab_size = 49152;
  base.max_seq_len = 8192;
  const auto recipe =
      LoadRecipe(KVLATHE_SOURCE_DIR "/docs/results/retrofit/smollm2-recipe.json", &base);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->trained, TrainedWeights::kAttention);
  EXPECT_EQ(recipe->model.vocab_size, 49152);
  int64_t n_tokens = 0;
  for (const DmcStage stage : {DmcStage::kZeroOut, DmcStage::kRamp, DmcStage::kSolidify}) {
    n_tokens += RecipeOfStage(*recipe, stage).total_tokens;
  }
  EXPECT_EQ(n_tokens, 122'880);
}

TEST(Recipe, RefusesWhatCannotRun) {
  const auto refused = [](const char* pointer, const Json& value) {
    Json json = ValidRecipe();
    json[Json::json_pointer(pointer)] = value;
    const auto recipe = ParseRecipe(json, "r.json");
    EXPECT_EQ(recipe.status().code(), StatusCode::kInvalidArgument) << pointer << recipe.status();
    EXPECT_NE(MessageOf(recipe.status()).find("r.json"), std::string::npos) << recipe.status();
  };
  refused("/surprise", 1);
  refused("/dmc", Json{{"compression", 1}});
  refused("/dmc", Json{{"channel", "middle"}});
  refused("/dmc", Json{{"hinge", "head"}});
  refused("/dmc", Json{{"save_at", {1}}});
  refused("/dmc", Json{{"immediate", 1}});
  refused("/dmc", Json{{"surprise", 1}});
  refused("/total_tokens", 0);
  refused("/total_tokens", "many");
  refused("/total_tokens", 18446744073709551615ull);
  refused("/batch_tokens", 48);       // not a multiple of the micro batch
  refused("/phases/0/context", 7);    // does not divide the micro batch
  refused("/phases/0/context", 128);  // beyond the model's
  refused("/phases/0/share", 0.5);    // the shares do not add up
  refused("/phases/0/mixture", Json::object());
  refused("/phases/0/mixture/text", -1);
  refused("/phases", Json::array());
  refused("/optimizer/method", "sgd");
  refused("/optimizer/learning_rate", -1);
  refused("/optimizer", 3);
  Json json = ValidRecipe();
  json.erase("phases");
  EXPECT_FALSE(ParseRecipe(json, "r").ok());
  EXPECT_FALSE(ParseRecipe(Json::array(), "r").ok());
  EXPECT_EQ(LoadRecipe("/nonexistent/recipe.json").status().code(), StatusCode::kNotFound);
}

TEST(PermutedIndex, IsAPermutationThatDependsOnTheKey) {
  for (const int64_t n : {1, 2, 7, 64, 1000}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < n; ++i) seen.insert(PermutedIndex(3, n, i));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  EXPECT_NE(PermutedIndex(1, 1000, 0), PermutedIndex(2, 1000, 0));
}

class OrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/kvlathe_order_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    std::vector<uint16_t> text(500), rows(9 * 20);
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<uint16_t>(i % 90 + 5);
    // Row r holds r + 10 only, so that a sequence tells where it came from.
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i / 9 + 10);
    Write("text.u16", text);
    Write("rows.u16", rows);
    info_.vocab_size = 100;
    info_.bos_id = 1;
    info_.sources["text"] = {"text.u16", 0, 500, 1500};
    info_.sources["rows"] = {"rows.u16", 9, 180, 400};
    ASSERT_TRUE(WriteCorpusInfo(directory_, info_).ok());
    recipe_ = *ParseRecipe(ValidRecipe(), "r");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::vector<uint16_t>& ids) {
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 2);
    ASSERT_TRUE(WriteFileAtomically(directory_ + "/" + name, bytes).ok());
  }

  std::string directory_;
  CorpusInfo info_;
  TrainingRecipe recipe_;
};

TEST_F(OrderTest, ReadsEveryRowOncePerPassAndKeepsTheMixture) {
  auto corpus = Corpus::Open(directory_);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  auto order = BatchOrder::Create(&recipe_, &*corpus);
  ASSERT_TRUE(order.ok()) << order.status();
  std::map<int64_t, int> rows;
  int n_text = 0, n_rows = 0;
  std::vector<int64_t> ids(9);
  for (int64_t i = 0; i < 4000; ++i) {
    order->Read(0, i, ids);
    if (ids[0] == 1) {
      // A window of the stream: consecutive text after BOS.
      ++n_text;
      for (size_t t = 2; t < ids.size(); ++t) {
        EXPECT_EQ((ids[t] - 5 - (ids[t - 1] - 5) + 90) % 90, 1);
      }
    } else {
      ++n_rows;
      for (const int64_t id : ids) EXPECT_EQ(id, ids[0]);
      rows[ids[0]] += 1;
    }
  }
  EXPECT_EQ(n_text, 3000);
  EXPECT_EQ(n_rows, 1000);
  ASSERT_EQ(rows.size(), 20u);
  for (const auto& [row, n] : rows) EXPECT_EQ(n, 50) << row;

  std::vector<int64_t> again(9);
  order->Read(0, 1234, ids);
  order->Read(0, 1234, again);
  EXPECT_EQ(ids, again);
}

TEST_F(OrderTest, ValidationPredictsTheTextOnceInOrder) {
  auto corpus = Corpus::Open(directory_);
  auto order = BatchOrder::Create(&recipe_, &*corpus);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order->n_validation_sequences(16), 500 / 16);
  std::vector<int64_t> ids(17);
  order->ReadValidation(2, ids);
  EXPECT_EQ(ids[0], 1);
  for (int t = 1; t < 17; ++t) EXPECT_EQ(ids[t], (32 + t - 1) % 90 + 5);
}

// Vocabularies of more than 15 bits have files of four bytes a token, and the same marks; a corpus
// without BOS is read as it is cut.
TEST_F(OrderTest, ReadsWideTokensAndTextWithoutBos) {
  std::vector<uint32_t> text;
  for (uint32_t i = 0; i < 500; ++i) text.push_back((40000 + i) | (i % 3 == 0 ? kNotLearned : 0));
  info_.vocab_size = 50000;
  info_.bos_id = -1;
  info_.sources = {{"text", {"text.u32", 0, 500, 1500}}};
  std::string bytes;
  AppendTokens(text, info_.vocab_size, &bytes);
  ASSERT_EQ(bytes.size(), 2000u);
  ASSERT_TRUE(WriteFileAtomically(directory_ + "/text.u32", bytes).ok());
  ASSERT_TRUE(WriteCorpusInfo(directory_, info_).ok());
  auto corpus = Corpus::Open(directory_);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  recipe_.model.vocab_size = 50000;
  for (TrainingPhase& phase : recipe_.phases) phase.mixture = {{"text", 1}};
  auto order = BatchOrder::Create(&recipe_, &*corpus);
  ASSERT_TRUE(order.ok()) << order.status();
  std::vector<int64_t> ids(9);
  const auto expect_text = [&] {
    const int64_t begin = (ids[0] & ~int64_t{kNotLearned}) - 40000;
    for (int64_t t = 0; t < 9; ++t) EXPECT_EQ(ids[t], text[begin + t]);
    return begin;
  };
  for (int64_t i = 0; i < 100; ++i) {
    order->Read(0, i, ids);
    expect_text();
  }
  EXPECT_EQ(order->n_validation_sequences(8), 499 / 8);
  order->ReadValidation(499 / 8 - 1, ids);
  EXPECT_EQ(expect_text(), 8 * (499 / 8 - 1));
}

TEST_F(OrderTest, RefusesACorpusThatDoesNotFit) {
  auto corpus = Corpus::Open(directory_);
  const auto refused = [&](TrainingRecipe recipe) {
    return BatchOrder::Create(&recipe, &*corpus).status().code() == StatusCode::kInvalidArgument;
  };
  TrainingRecipe recipe = recipe_;
  recipe.phases[0].mixture["music"] = 1;
  EXPECT_TRUE(refused(recipe));
  recipe = recipe_;
  recipe.phases[1].mixture["rows"] = 1;  // rows of 9 in a context of 16
  EXPECT_TRUE(refused(recipe));
  recipe = recipe_;
  recipe.model.vocab_size = 50;
  EXPECT_TRUE(refused(recipe));
  recipe = recipe_;
  recipe.validation_source = "music";
  EXPECT_TRUE(refused(recipe));
  recipe = recipe_;
  recipe.phases[0].context = 400;
  EXPECT_TRUE(refused(recipe));
}

TEST_F(OrderTest, RefusesDamagedCorpora) {
  info_.sources["text"].n_tokens = 501;
  ASSERT_TRUE(WriteCorpusInfo(directory_, info_).ok());
  EXPECT_EQ(Corpus::Open(directory_).status().code(), StatusCode::kDataLoss);
  info_.sources["text"].n_tokens = 500;
  info_.vocab_size = 20;
  ASSERT_TRUE(WriteCorpusInfo(directory_, info_).ok());
  EXPECT_EQ(Corpus::Open(directory_).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(WriteFileAtomically(directory_ + "/corpus.json", "{\"sources\": 3}").ok());
  EXPECT_EQ(Corpus::Open(directory_).status().code(), StatusCode::kDataLoss);
  std::filesystem::remove(directory_ + "/corpus.json");
  EXPECT_EQ(Corpus::Open(directory_).status().code(), StatusCode::kNotFound);
}

TEST(LossCurve, WritesNumbersAndAPicture) {
  const std::vector<LossPoint> points = {{1, 100, 8, 0.5, 3.25, -1},
                                         {2, 200, 8, 0.25, 2.5, 1.75, 0.5}};
  EXPECT_EQ(LossCurveCsv(points),
            "step,tokens,context,learning_rate,loss,validation_bits_per_byte,kept_share\n"
            "1,100,8,0.5,3.25000,,\n2,200,8,0.25,2.50000,1.75000,0.50000\n");
  const std::string svg = LossCurveSvg(points, "a run");
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find("a run"), std::string::npos);
  // The second point stands at the right end; 2.5 of 4 up the axis from 370 to 40.
  EXPECT_NE(svg.find("780.0,163.8"), std::string::npos) << svg;
}

}  // namespace
}  // namespace kvlathe
