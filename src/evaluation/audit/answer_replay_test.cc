#include "evaluation/audit/answer_replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "evaluation/quality.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kPlenty = int64_t{64} << 20;
constexpr const char* kRuns = "kivi(bits=2,group=32,run=128,buffer=64)";

// Keeps what an engine says of its answers, and the logits that each token was drawn from.
class AnswerKeeper : public EngineObserver {
 public:
  void OnAnswered(RequestId, const AnsweredRequest& answered) override {
    answers.push_back({.tokens = {answered.tokens.begin(), answered.tokens.end()},
                       .n_read = answered.n_read,
                       .n_cache_prompt = answered.n_cache_prompt,
                       .n_generated = answered.request.max_tokens});
  }
  std::vector<GivenAnswer> answers;
};

class AnswerReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Load(MakeRandomSource(3));
    for (int t = 0; t < 400; ++t) tokens_.push_back((t * 37 + t / 11) % kSmallVocabulary);
  }
  void Load(std::unique_ptr<TensorSource> source) {
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, std::move(source),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    none_ = Make("none");
  }
  std::unique_ptr<Model> Make(const std::string& spec) {
    auto model = CreateModel(weights_, PartsOf(Spec::Parse(spec).value(), nullptr));
    EXPECT_TRUE(model.ok()) << model.status();
    (*model)->set_deterministic(true);
    return *std::move(model);
  }
  GivenAnswer Answer(int n_tokens, int n_read) const {
    return {.tokens = {tokens_.begin(), tokens_.begin() + n_tokens},
            .n_read = n_read,
            .n_cache_prompt = n_read,
            .n_generated = n_tokens - n_read};
  }
  ReplayScore Replay(const GivenAnswer& answer, Model* model) {
    HostPool pool(AnswerReplay::PeakBytes(answer, *none_, model->layout()));
    {
      AnswerReplay replay(answer, none_.get(), model, &model->layout(), &pool);
      while (!replay.is_done()) {
        const Status status = replay.Step(&threads_);
        EXPECT_TRUE(status.ok()) << status;
        if (!status.ok()) return {};
      }
      score_ = replay.score();
    }
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return score_;
  }
  // Generates greedily behind each prompt, one after the other, and keeps the logits of the last.
  std::vector<GivenAnswer> Generate(Model* model, const std::vector<std::vector<int32_t>>& prompts,
                                    int n_tokens, int64_t prefix_bytes) {
    HostPool pool(kPlenty);
    AnswerKeeper keeper;
    Engine engine({model}, &pool,
                  {.max_batch_tokens = 96, .prefix_bytes = prefix_bytes, .observer = &keeper});
    for (const std::vector<int32_t>& prompt : prompts) {
      logits_.clear();
      Request request;
      request.prompt = prompt;
      request.max_tokens = n_tokens;
      request.answer_id = "a";
      const auto id = engine.Submit(
          std::move(request),
          [&](Engine::RequestId, const GeneratedToken&) {
            const std::span<const float> row = model->logits(0);
            logits_.emplace_back(row.begin(), row.end());
            return FinishReason::kNone;
          },
          nullptr);
      EXPECT_TRUE(id.ok()) << id.status();
      EXPECT_TRUE(engine.RunUntilIdle().ok());
    }
    return keeper.answers;
  }
  // The divergence of the uncompressed model, fed token by token, from the logits that were kept.
  std::vector<double> KlOfKeptLogits(const GivenAnswer& answer) {
    HostPool pool(kPlenty);
    SequenceCache cache(&none_->layout(), &pool);
    std::vector<double> kl;
    for (size_t t = 0; t + 1 < answer.tokens.size(); ++t) {
      EXPECT_TRUE(Prefill(none_.get(), &cache, {&answer.tokens[t], 1}).ok());
      if (static_cast<int64_t>(t) + 1 < answer.n_read) continue;
      const std::vector<double> p = Probabilities(none_->logits(0));
      const std::vector<double> q = Probabilities(logits_[kl.size()]);
      double sum = 0;
      for (size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
      kl.push_back(sum);
    }
    return kl;
  }
  static std::vector<double> Probabilities(std::span<const float> logits) {
    std::vector<double> p;
    for (const float x : logits) p.push_back(std::exp(double{x}));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  }
  void ExpectNear(const ReplayScore& score, const std::vector<double>& kl) {
    ASSERT_EQ(score.kl.size(), kl.size());
    for (size_t i = 0; i < kl.size(); ++i) EXPECT_NEAR(score.kl[i], kl[i], 2e-5) << i;
  }

  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> none_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> logits_;
  ReplayScore score_;
};

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST_F(AnswerReplayTest, SaysWhatCompareSaysOfTheSameTokens) {
  for (const char* spec : {"int8", kRuns, "h2o(keep=0.5)", "window(size=64)", "pool(n=4)"}) {
    const auto model = Make(spec);
    const EvaluationText text = {{{tokens_.begin(), tokens_.begin() + 300}},
                                 {std::vector<int>(300, 1)}};
    Model* const models[] = {none_.get(), model.get()};
    const auto qualities = MeasureQuality(models, text, kPlenty, &threads_, nullptr);
    ASSERT_TRUE(qualities.ok()) << spec << qualities.status();
    const Quality& quality = (*qualities)[1];
    const ReplayScore score = Replay(Answer(300, 150), model.get());
    ASSERT_EQ(std::ssize(score.kl), quality.n_tokens);
    EXPECT_GT(quality.kl, 1e-9) << spec;
    EXPECT_NEAR(MeanOf(score.kl), quality.kl, 1e-9 + 1e-3 * quality.kl) << spec;
    EXPECT_EQ(static_cast<double>(score.n_agree) / 150, quality.top1_agreement) << spec;
  }
}

TEST_F(AnswerReplayTest, TheUncompressedCacheIsNowhereFromItself) {
  const ReplayScore score = Replay(Answer(200, 120), Make("none").get());
  EXPECT_EQ(score.kl, std::vector<double>(80, 0.0));
  EXPECT_EQ(score.n_agree, 80);
  EXPECT_FALSE(score.first_parted.has_value());
  EXPECT_EQ(Replay(Answer(200, 120), none_.get()).n_agree, 80);  // one model for both
}

// The logits that an engine drew its tokens from are those of the replay, position by position.
TEST_F(AnswerReplayTest, SealsAsServingDid) {
  const auto model = Make(kRuns);
  for (const int n_prompt : {1, 63, 150}) {
    const std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + n_prompt);
    const auto answers = Generate(model.get(), {prompt}, 200, 0);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].n_read, n_prompt);
    EXPECT_EQ(answers[0].n_answer(), 200);
    const std::vector<double> kl = KlOfKeptLogits(answers[0]);
    EXPECT_GT(MeanOf(kl), 1e-4);
    ExpectNear(Replay(answers[0], model.get()), kl);
  }
}

TEST_F(AnswerReplayTest, SealsAsServingDidBehindAnEarlierAnswer) {
  const auto model = Make(kRuns);
  std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + 70);
  const auto first = Generate(model.get(), {prompt}, 150, kPlenty);
  std::vector<int32_t> turn = first[0].tokens;
  turn.insert(turn.end(), tokens_.begin() + 200, tokens_.begin() + 300);
  const auto answers = Generate(model.get(), {prompt, turn}, 150, kPlenty);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].n_cache_prompt, 70);
  EXPECT_EQ(answers[1].n_read, 320);
  const std::vector<double> kl = KlOfKeptLogits(answers[1]);
  ExpectNear(Replay(answers[1], model.get()), kl);
  // As one prompt the same tokens are sealed otherwise.
  GivenAnswer at_once = answers[1];
  at_once.n_cache_prompt = at_once.n_read;
  EXPECT_GT(std::abs(MeanOf(Replay(at_once, model.get()).kl) - MeanOf(kl)), 1e-5);
}

TEST_F(AnswerReplayTest, NamesTheFirstPositionWhereTheLikeliestTokenIsAnother) {
  const auto model = Make(kRuns);
  const ReplayScore score = Replay(Answer(300, 150), model.get());
  ASSERT_TRUE(score.first_parted.has_value());
  EXPECT_LT(score.n_agree, 150);
  GivenAnswer until = Answer(150 + static_cast<int>(*score.first_parted), 150);
  if (until.n_answer() > 0) {
    until.n_generated = 150;
    EXPECT_FALSE(Replay(until, model.get()).first_parted.has_value());
  }
}

TEST_F(AnswerReplayTest, StepsAreShort) {
  const auto model = Make("int8");
  const GivenAnswer answer = Answer(400, 200);
  HostPool pool(kPlenty);
  AnswerReplay replay(answer, none_.get(), model.get(), &model->layout(), &pool);
  int n_steps = 0;
  for (int64_t before = 0; !replay.is_done(); ++n_steps) {
    ASSERT_TRUE(replay.Step(&threads_).ok());
    EXPECT_LE(replay.n_scored() - before, AnswerReplay::kStepTokens);
    before = replay.n_scored();
  }
  EXPECT_GE(n_steps, 2 * 4 + 1 + 4);  // 199 tokens in both caches, the last one, 199 of the answer
}

TEST_F(AnswerReplayTest, APoolThatIsTooSmallIsAnErrorAndGetsEverythingBack) {
  const GivenAnswer answer = Answer(300, 150);
  HostPool pool(AnswerReplay::PeakBytes(answer, *none_, none_->layout()) / 2);
  {
    AnswerReplay replay(answer, none_.get(), none_.get(), &none_->layout(), &pool);
    Status status;
    while (status.ok() && !replay.is_done()) status = replay.Step(&threads_);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST_F(AnswerReplayTest, LogitsThatAreNotFiniteAreAnError) {
  Load(std::make_unique<OverflowingSource>(3, tokens_[30]));
  HostPool pool(kPlenty);
  AnswerReplay replay(Answer(40, 20), none_.get(), none_.get(), &none_->layout(), &pool);
  Status status;
  while (status.ok() && !replay.is_done()) status = replay.Step(&threads_);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
}

TEST_F(AnswerReplayTest, RefusesNumbersThatDoNotFit) {
  EXPECT_TRUE(CheckAnswer(Answer(20, 10), kSmallVocabulary).ok());
  EXPECT_TRUE(CheckAnswer(Answer(20, 20), kSmallVocabulary).ok());
  const auto refuses = [&](auto change) {
    GivenAnswer answer = Answer(20, 10);
    change(&answer);
    return CheckAnswer(answer, kSmallVocabulary).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->n_read = 0; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->n_read = 21; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->n_cache_prompt = 0; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->n_cache_prompt = 11; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->n_generated = 9; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->tokens[3] = kSmallVocabulary; }));
  EXPECT_TRUE(refuses([](GivenAnswer* a) { a->tokens[19] = -1; }));
}

}  // namespace
}  // namespace kvlathe
