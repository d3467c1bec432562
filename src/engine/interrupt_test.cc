// Ending requests from outside: an interrupt that is heard between steps, and Cancel.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

class InterruptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(WideConfig(32), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    model_->set_deterministic(true);
  }
  static Request MakeRequest(int n_prompt, int max_tokens = 40) {
    Request r;
    Random random(n_prompt);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(kSmallVocabulary));
    r.max_tokens = max_tokens;
    return r;
  }
  Engine::FinishCallback Keep() {
    return [this](auto id, const RequestOutcome& o) { outcomes_[id] = o; };
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
  HostPool pool_{64 << 20};
  std::map<Engine::RequestId, RequestOutcome> outcomes_;
};

TEST_F(InterruptTest, StopsWithinAStepWhateverRunsOrWaits) {
  bool is_interrupted = false;
  Engine engine({model_.get()}, &pool_,
                {.max_sequences = 2, .is_interrupted = [&] { return is_interrupted; }});
  int n_tokens = 0;
  const auto on_token = [&](auto, const GeneratedToken&) {
    is_interrupted = ++n_tokens == 9;
    return FinishReason::kNone;
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(
        engine.Submit(MakeRequest(30 + i), i == 0 ? on_token : Engine::TokenCallback(), Keep())
            .ok());
  }
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(n_tokens, 9);
  ASSERT_EQ(outcomes_.size(), 4u);
  for (const auto& [id, outcome] : outcomes_) {
    EXPECT_EQ(outcome.finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(outcome.status.code(), StatusCode::kCancelled);
    EXPECT_EQ(outcome.tokens.size(), id <= 2 ? 9u : 0u);
  }
  EXPECT_EQ(engine.n_running() + engine.n_waiting(), 0);
  EXPECT_EQ(pool_.usage().used_bytes, 0);
  is_interrupted = false;
  const auto id = engine.Submit(MakeRequest(20), nullptr, Keep());
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcomes_[*id].finish_reason, FinishReason::kLength);
}

TEST_F(InterruptTest, IsHeardInAPromptAndFromAnotherThread) {
  std::atomic<bool> is_interrupted = false;
  std::atomic<int> n_steps = 0;
  Engine engine({model_.get()}, &pool_, {.max_batch_tokens = 1, .is_interrupted = [&] {
                                           ++n_steps;
                                           return is_interrupted.load();
                                         }});
  const auto id = engine.Submit(MakeRequest(900), nullptr, Keep());
  ASSERT_TRUE(id.ok());
  std::thread other([&] {
    while (n_steps.load() < 5) std::this_thread::yield();
    is_interrupted = true;
  });
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  other.join();
  EXPECT_EQ(outcomes_[*id].finish_reason, FinishReason::kCancelled);
  EXPECT_LT(outcomes_[*id].n_cached_tokens, 900);
  EXPECT_EQ(pool_.usage().used_bytes, 0);
}

TEST_F(InterruptTest, ACallbackThatSubmitsAgainDoesNotKeepItFromEnding) {
  Engine engine({model_.get()}, &pool_, {.is_interrupted = [] { return true; }});
  Engine::FinishCallback again = [&](auto, auto&) {
    ASSERT_TRUE(engine.Submit(MakeRequest(10), nullptr, nullptr).ok());
  };
  ASSERT_TRUE(engine.Submit(MakeRequest(10), nullptr, again).ok());
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(engine.n_waiting(), 1);
}

TEST_F(InterruptTest, CancelEndsOneThatRunsAndOneThatWaits) {
  Engine engine({model_.get()}, &pool_, {.max_sequences = 2});
  for (int i = 1; i <= 4; ++i) ASSERT_TRUE(engine.Submit(MakeRequest(i * 9), nullptr, Keep()).ok());
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(engine.Step());
  EXPECT_TRUE(engine.Cancel(2));
  EXPECT_TRUE(engine.Cancel(4));
  EXPECT_FALSE(engine.Cancel(4));
  EXPECT_FALSE(engine.Cancel(99));
  EXPECT_TRUE(outcomes_.empty());  // they end with the next step
  EXPECT_TRUE(engine.Step());
  EXPECT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[2].tokens.size(), 5u);
  EXPECT_EQ(outcomes_[4].n_cached_tokens, 0);
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_FALSE(engine.Cancel(1));
  for (const int id : {1, 2, 3, 4}) {
    EXPECT_EQ(outcomes_[id].finish_reason,
              id % 2 == 0 ? FinishReason::kCancelled : FinishReason::kLength);
  }
  EXPECT_EQ(pool_.usage().used_bytes, 0);
}

TEST_F(InterruptTest, CancelGivesBlocksBackWithTheNextStep) {
  Engine engine({model_.get()}, &pool_, {});
  ASSERT_TRUE(engine.Submit(MakeRequest(40), nullptr, Keep()).ok());
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(engine.Step());
  EXPECT_GT(pool_.usage().used_bytes, 0);
  EXPECT_TRUE(engine.Cancel(1));
  EXPECT_FALSE(engine.Step());
  EXPECT_EQ(pool_.usage().used_bytes, 0);
  EXPECT_EQ(outcomes_[1].finish_reason, FinishReason::kCancelled);
}

// Cancelled in its prompt, behind it, and before it ran at all.
TEST_F(InterruptTest, ASessionThatWasCancelledGoesOnToTheSameTokens) {
  Engine engine({model_.get()}, &pool_, {.max_batch_tokens = 10});
  const auto run = [&](Request request, int n_steps, Session session) {
    Session left;
    const auto id = engine.Submit(
        std::move(request), nullptr,
        [&](auto request_id, const RequestOutcome& o) {
          outcomes_[request_id] = o;
          left = engine.TakeSession(request_id);
        },
        std::move(session));
    EXPECT_TRUE(id.ok()) << id.status();
    for (int step = 0; step < n_steps; ++step) EXPECT_TRUE(engine.Step());
    if (n_steps >= 0) EXPECT_TRUE(engine.Cancel(*id));
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    return left;
  };
  const ScratchFolder folder;
  const std::string path = folder.path() + "/session";
  const std::vector<int32_t> expected = run(MakeRequest(35, 20), -1, {}).tokens;
  for (const int n_steps : {0, 2, 4, 9}) {
    Session session = run(MakeRequest(35, 20), n_steps, {});
    const int n_left = 20 - static_cast<int>(session.tokens.size() - 35);
    EXPECT_EQ(n_left, n_steps == 9 ? 14 : n_steps == 4 ? 19 : 20);
    EXPECT_EQ(session.cache != nullptr, n_steps >= 4);
    EXPECT_EQ(SaveSession(session, {}, path).ok(), n_steps >= 4);
    Request further;
    further.max_tokens = n_left;
    EXPECT_EQ(run(std::move(further), -1, std::move(session)).tokens, expected) << n_steps;
  }
}

}  // namespace
}  // namespace kvlathe
