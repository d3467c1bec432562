#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kRoomForAll = int64_t{64} << 20;

// A small random model: the engine's bookkeeping does not depend on the weights.
class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(SmallConfig(16), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  std::vector<int32_t> Prompt(int n, uint64_t seed) {
    Random random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
    return ids;
  }
  // Runs the requests together and returns their tokens.
  std::vector<RequestOutcome> RunTogether(const std::vector<Request>& requests, int64_t budget,
                                          const EngineOptions& options) {
    HostPool pool(budget);
    std::vector<RequestOutcome> outcomes(requests.size());
    {
      Engine engine({model_.get()}, &pool, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        auto id = engine.Submit(requests[i], nullptr,
                                [&outcomes, i](auto, const RequestOutcome& o) { outcomes[i] = o; });
        EXPECT_TRUE(id.ok()) << id.status();
      }
      EXPECT_TRUE(engine.RunUntilIdle().ok());
    }
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_LE(pool.usage().peak_bytes, budget);
    return outcomes;
  }
  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_F(EngineTest, PoolsTheHiddenStatesOfAPromptBesideOthers) {
  Request mean;
  mean.prompt = Prompt(90, 5);
  mean.max_tokens = 1;
  mean.pooling = Pooling::kMean;
  Request last = mean;
  last.pooling = Pooling::kLast;
  Request all = mean;
  all.pooling = Pooling::kAll;
  Request generates;
  generates.prompt = Prompt(60, 6);
  generates.max_tokens = 20;
  // What one forward says.
  HostPool pool(kRoomForAll);
  std::vector<float> expected_mean, expected_last, expected_all;
  {
    SequenceCache cache(&model_->layout(), &pool);
    ASSERT_TRUE(cache.Extend(90).ok());
    const SequenceStep step{&cache, mean.prompt, SequenceStep::Logits::kHidden};
    ASSERT_TRUE(model_->Forward({&step, 1}).ok());
    expected_mean.assign(model_->hidden(0).size(), 0);
    for (int row = 0; row < 90; ++row) {
      const std::span<const float> hidden = model_->hidden(row);
      expected_all.insert(expected_all.end(), hidden.begin(), hidden.end());
      for (size_t d = 0; d < expected_mean.size(); ++d) {
        expected_mean[d] += model_->hidden(row)[d] / 90;
      }
    }
    expected_last.assign(model_->hidden(89).begin(), model_->hidden(89).end());
  }
  const auto alone = RunTogether({generates}, kRoomForAll, {});
  for (const int max_batch_tokens : {7, 512}) {
    EngineOptions options = {.max_batch_tokens = max_batch_tokens};
    options.prefix_bytes = kRoomForAll / 2;
    const auto outcomes = RunTogether({generates, mean, last, all}, kRoomForAll, options);
    EXPECT_EQ(outcomes[0].tokens, alone[0].tokens);
    const std::vector<float>* const of_request[] = {nullptr, &expected_mean, &expected_last,
                                                    &expected_all};
    for (const int i : {1, 2, 3}) {
      EXPECT_TRUE(outcomes[i].tokens.empty());
      EXPECT_EQ(outcomes[i].finish_reason, FinishReason::kStop);
      const std::vector<float>& expected = *of_request[i];
      ASSERT_EQ(outcomes[i].embedding.size(), expected.size());
      for (size_t d = 0; d < expected.size(); ++d) {
        EXPECT_NEAR(outcomes[i].embedding[d], expected[d], 1e-3) << i << ", " << d;
      }
    }
  }
  Engine engine({model_.get()}, &pool, {});
  mean.max_tokens = 2;
  EXPECT_EQ(engine.Submit(mean, nullptr, nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, SequencesTogetherGiveTheTokensOfEachAlone) {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request r;
    r.prompt = Prompt(5 + 40 * i, i);
    r.max_tokens = 12 + i;
    if (i % 2 == 1) r.sampling = {.temperature = 0.9f, .top_k = 20, .top_p = 0.95f, .seed = 77};
    requests.push_back(r);
  }
  const auto together = RunTogether(requests, 64 << 20, {.max_batch_tokens = 48});
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = RunTogether({requests[i]}, 64 << 20, {});
    EXPECT_EQ(together[i].tokens, alone[0].tokens) << "request " << i;
    EXPECT_EQ(together[i].finish_reason, FinishReason::kLength);
    EXPECT_EQ(together[i].tokens.size(), static_cast<size_t>(requests[i].max_tokens));
    EXPECT_EQ(together[i].n_cached_tokens,
              static_cast<int>(requests[i].prompt.size()) + requests[i].max_tokens - 1);
  }
}

TEST_F(EngineTest, WaitsForRoomInTheBudget) {
  std::vector<Request> requests(3);
  for (int i = 0; i < 3; ++i) {
    requests[i].prompt = Prompt(100, i);
    requests[i].max_tokens = 30;
  }
  const int64_t one = SequenceBytes(model_->layout(), 129);
  const auto outcomes = RunTogether(requests, one + one / 2, {});
  for (const auto& o : outcomes) EXPECT_EQ(o.tokens.size(), 30u);
}

TEST_F(EngineTest, RefusesWhatCanNeverRun) {
  HostPool pool(SequenceBytes(model_->layout(), 100));
  Engine engine({model_.get()}, &pool, {});
  const auto code = [&](Request r) {
    return engine.Submit(std::move(r), nullptr, nullptr).status().code();
  };
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1, 128}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {-1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .max_tokens = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = Prompt(500, 1), .max_tokens = 100}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = Prompt(200, 1), .max_tokens = 100}), StatusCode::kResourceExhausted);
  EXPECT_EQ(code({.prompt = {1}, .sampling = {.temperature = -1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prompt = {1}, .sampling = {.logit_bias = {{128, 1.f}}}}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.n_waiting(), 0);
}

TEST_F(EngineTest, StopsAtAStopTokenAndWhenCancelled) {
  Request r;
  r.prompt = Prompt(20, 4);
  r.max_tokens = 20;
  const auto free_run = RunTogether({r}, 64 << 20, {});
  r.stop_ids = {free_run[0].tokens[5]};
  const auto stopped = RunTogether({r}, 64 << 20, {});
  EXPECT_EQ(stopped[0].finish_reason, FinishReason::kStop);
  EXPECT_LE(stopped[0].tokens.size(), 5u);
  EXPECT_EQ(stopped[0].stop_id, r.stop_ids[0]);
  EXPECT_FALSE(free_run[0].stop_id.has_value());

  HostPool pool(64 << 20);
  Engine engine({model_.get()}, &pool, {});
  RequestOutcome outcome;
  int n_tokens = 0;
  r.stop_ids.clear();
  ASSERT_TRUE(engine
                  .Submit(
                      r,
                      [&](auto, const GeneratedToken&) {
                        return ++n_tokens < 3 ? FinishReason::kNone : FinishReason::kCancelled;
                      },
                      [&](auto, const RequestOutcome& o) { outcome = o; })
                  .ok());
  ASSERT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(outcome.tokens.size(), 3u);

  // As a stop string ends it, on the last token that it may have.
  r.max_tokens = 1;
  ASSERT_TRUE(engine
                  .Submit(
                      r, [&](auto, const GeneratedToken&) { return FinishReason::kStop; },
                      [&](auto, const RequestOutcome& o) { outcome = o; })
                  .ok());
  ASSERT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kStop);
  EXPECT_EQ(outcome.tokens.size(), 1u);
}

}  // namespace
}  // namespace kvlathe
