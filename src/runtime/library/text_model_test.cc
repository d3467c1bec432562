#include "kvlathe/text_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvlathe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kModel = KVLATHE_SOURCE_DIR "/models/lathe-nano";
constexpr const char* kPrompt = "It was a dark";

class TextModelTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ModelSettings settings;
    settings.n_threads = 1;
    settings.is_deterministic = true;
    settings.kv_budget_bytes = 1 << 24;
    settings.caches = {"none", "kivi(bits=4)"};
    auto opened = TextModel::Open(kModel, settings);
    ASSERT_TRUE(opened.ok()) << opened.status();
    model_ = opened->release();
  }
  static void TearDownTestSuite() { delete model_; }

  static std::unique_ptr<Generator> MakeGenerator() {
    auto made = model_->MakeGenerator({"none", "kivi(bits=4)"});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  static inline TextModel* model_ = nullptr;
};

TEST_F(TextModelTest, TokensAndText) {
  EXPECT_EQ(model_->context_tokens(), 1024);
  const std::vector<int32_t> ids = model_->Tokenize(kPrompt);
  EXPECT_THAT(model_->Detokenize(ids), HasSubstr(kPrompt));
  for (const int32_t id : ids) EXPECT_LT(id, model_->vocab_size());
}

TEST_F(TextModelTest, RequestsTogetherSayWhatTheySayAlone) {
  const auto generator = MakeGenerator();
  std::vector<TextResult> together(2), alone;
  std::string prompt;  // longer than what a cache leaves as it is
  for (int i = 0; i < 40; ++i) prompt += "It was a dark night. ";
  for (int i = 0; i < 2; ++i) {
    const TextRequest request = {.prompt = prompt, .max_tokens = 30, .cache_idx = i};
    const auto id = generator->Submit(request, nullptr,
                                      [&, i](const TextResult& result) { together[i] = result; });
    ASSERT_TRUE(id.ok()) << id.status();
  }
  while (generator->Step()) {
  }
  for (int i = 0; i < 2; ++i) {
    std::string streamed;
    const auto result = generator->Generate(
        {.prompt_ids = model_->Tokenize(prompt), .max_tokens = 30, .cache_idx = i},
        [&](const std::string& piece) {
          streamed += piece;
          return true;
        });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->text, streamed);
    EXPECT_EQ(result->text, together[i].text);
    EXPECT_EQ(result->ids, together[i].ids);
    EXPECT_EQ(result->end, TextEnd::kLength);
    EXPECT_EQ(result->ids.size(), 30);
    alone.push_back(*result);
  }
  EXPECT_LT(alone[1].kv_bytes, alone[0].kv_bytes);
  EXPECT_LT(alone[1].kv_fraction, 1);
}

TEST_F(TextModelTest, TextsEndAtStopsAndWhereTheyAreCancelled) {
  const auto generator = MakeGenerator();
  const auto whole = generator->Generate({.prompt = kPrompt, .max_tokens = 40});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::string stop = whole->text.substr(20, 5);
  const auto stopped = generator->Generate({.prompt = kPrompt, .max_tokens = 40, .stops = {stop}});
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->text, whole->text.substr(0, whole->text.find(stop)));
  EXPECT_EQ(stopped->end, TextEnd::kStop);
  const auto cancelled = generator->Generate({.prompt = kPrompt, .max_tokens = 40},
                                             [](const std::string&) { return false; });
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->end, TextEnd::kCancelled);
  EXPECT_THAT(whole->text, StartsWith(cancelled->text));
  TextResult ended;
  const auto id = generator->Submit({.prompt = kPrompt}, nullptr,
                                    [&](const TextResult& result) { ended = result; });
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(generator->Cancel(*id));
  while (generator->Step()) {
  }
  EXPECT_EQ(ended.end, TextEnd::kCancelled);
  EXPECT_FALSE(generator->Cancel(*id));
}

TEST_F(TextModelTest, GeneratorsOutliveTheirModel) {
  ModelSettings settings;
  settings.n_threads = 1;
  auto model = TextModel::Open(kModel, settings);
  ASSERT_TRUE(model.ok()) << model.status();
  auto generator = (*model)->MakeGenerator({"none"});
  ASSERT_TRUE(generator.ok()) << generator.status();
  model->reset();
  EXPECT_TRUE((*generator)->Generate({.prompt = kPrompt, .max_tokens = 4}).ok());
}

TEST_F(TextModelTest, CostsOfCaches) {
  const auto cost = model_->CostOf("kivi(bits=4)");
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_LT(cost->fraction, 0.5);
  EXPECT_THAT(cost->resolved, StartsWith("kivi(bits=4"));
  EXPECT_FALSE(cost->predicted_kl.has_value());
}

TEST_F(TextModelTest, ErrorsSayWhatIsWrong) {
  const auto code_of = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code_of(TextModel::Open("/nowhere")), absl::StatusCode::kNotFound);
  ModelSettings wrong;
  wrong.caches = {"fcd"};
  EXPECT_THAT(std::string(TextModel::Open(kModel, wrong).status().message()),
              AllOf(HasSubstr("unknown stage 'fcd'")));
  wrong = {};
  wrong.context_tokens = 5000;
  EXPECT_EQ(code_of(TextModel::Open(kModel, wrong)), absl::StatusCode::kInvalidArgument);
  wrong.context_tokens = -1;
  EXPECT_EQ(code_of(TextModel::Open(kModel, wrong)), absl::StatusCode::kInvalidArgument);
  for (const char* device : {"gpu", "cuda:99"}) {  // which no computer has, nor most builds any
    wrong = {};
    wrong.device = device;
    EXPECT_THAT(std::string(TextModel::Open(kModel, wrong).status().message()), HasSubstr(device));
  }
  EXPECT_EQ(code_of(model_->MakeGenerator({})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(model_->Calibrate("/nowhere", ::testing::TempDir() + "/basis.safetensors").code(),
            absl::StatusCode::kNotFound);
  const auto generator = MakeGenerator();
  const std::vector<TextRequest> requests = {{.prompt = kPrompt, .cache_idx = 2},
                                             {.prompt = kPrompt, .temperature = -1},
                                             {.prompt = kPrompt, .max_tokens = 5000},
                                             {.prompt = kPrompt, .stops = {""}}};
  for (const TextRequest& request : requests) {
    EXPECT_EQ(code_of(generator->Generate(request)), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvlathe::runtime
