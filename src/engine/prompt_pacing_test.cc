// When prompts go on beside sequences that decode: by times that are given, and in the engine.
#include "engine/prompt_pacing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/small_model.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr StepWork kDecodes = {.n_sequences = 4, .n_decode_tokens = 4};
constexpr StepWork kChunk = {.n_sequences = 5, .n_decode_tokens = 4, .n_fill_tokens = 500};

// Steps that only decode, of this length, before prompts go on; at most 1000.
int StepsUntilPrompts(PromptPacing* pacing, double seconds) {
  int n_steps = 0;
  for (; n_steps < 1000 && !pacing->prompts_go_on(); ++n_steps) pacing->Note(kDecodes, seconds);
  return n_steps;
}

TEST(PromptPacingTest, PromptsGetTheirShareOfTheTime) {
  for (const auto& [share, n_steps] : {std::pair{0.5, 40}, {0.8, 10}, {0.25, 120}}) {
    PromptPacing pacing(share);
    EXPECT_TRUE(pacing.prompts_go_on());
    pacing.Note(kDecodes, 0.25);
    EXPECT_TRUE(pacing.prompts_go_on());
    for (int chunk = 0; chunk < 3; ++chunk) {
      pacing.Note(kChunk, 10.25);  // of which prompts took 10
      EXPECT_EQ(StepsUntilPrompts(&pacing, 0.25), n_steps) << share;
    }
  }
}

TEST(PromptPacingTest, WithAllOfTheTimeTheyGoOnInEveryStep) {
  PromptPacing pacing(1);
  for (int i = 0; i < 3; ++i) {
    pacing.Note(kChunk, 10);
    EXPECT_TRUE(pacing.prompts_go_on());
  }
}

TEST(PromptPacingTest, NoClockMakesThemWaitForMoreStepsThanTheChunkHadTokens) {
  PromptPacing pacing(0.5);
  pacing.Note(kChunk, 1e9);
  EXPECT_EQ(StepsUntilPrompts(&pacing, 0), 500);
  // What was left of that is not owed behind the next chunk.
  pacing.Note({.n_sequences = 2, .n_decode_tokens = 1, .n_fill_tokens = 7}, 1);
  EXPECT_EQ(StepsUntilPrompts(&pacing, 0.5), 2);
}

TEST(PromptPacingTest, NothingIsOwedWhereNothingDecodes) {
  PromptPacing pacing(0.5);
  pacing.Note(kChunk, 10);
  EXPECT_FALSE(pacing.prompts_go_on());
  pacing.Note({.n_sequences = 1, .n_fill_tokens = 500}, 10);
  EXPECT_TRUE(pacing.prompts_go_on());
}

// Takes a step's tokens down, and makes those of prompts take time.
class SlowPrompts : public EngineObserver {
 public:
  void OnStepBegan(const StepWork& work, const EngineLoad&) override {
    steps.push_back(work);
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * work.n_fill_tokens));
  }

  std::vector<StepWork> steps;
};

class PacedEngineTest : public ::testing::Test {
 protected:
  static constexpr int64_t kAmpleBytes = 64 << 20;

  void SetUp() override {
    ModelConfig c = SmallConfig(/*head_dim=*/32);
    c.max_seq_len = 1024;
    auto weights = ModelWeights::Load(c, DType::kBf16, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    model_ = MakeSmallModel(*std::move(weights), "none");
  }
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (const int n_prompt : {20, 60, 25, 110, 40}) {
      requests.push_back({.prompt = RandomPrompt(n_prompt, 1), .max_tokens = 60});
    }
    return requests;
  }

  ThreadPool threads_{1};
  std::unique_ptr<Model> model_;
};

TEST_F(PacedEngineTest, DecodingGoesOnBetweenTheChunksAndPromptsAreReadAllTheSame) {
  SlowPrompts observer;
  const std::vector<Trace> traces =
      RunRequests(model_.get(), Requests(), kAmpleBytes,
                  {.max_batch_tokens = 20, .prompt_share = 0.02, .observer = &observer});
  int n_since = 0, n_paced = 0;
  StepWork chunk;  // the last
  for (const StepWork& work : observer.steps) {
    if (work.n_fill_tokens == 0) {
      ++n_since;
      continue;
    }
    if (chunk.n_decode_tokens > 0 && work.n_decode_tokens > 0) {
      n_paced += n_since > 0;
      EXPECT_LE(n_since, chunk.n_fill_tokens);
    }
    chunk = work;
    n_since = 0;
  }
  EXPECT_GE(n_paced, 3);
  for (size_t i = 0; i < traces.size(); ++i) {
    EXPECT_EQ(traces[i].outcome.tokens.size(), 60u);
    EXPECT_EQ(traces[i], RunRequests(model_.get(), {Requests()[i]}, kAmpleBytes, {})[0]);
  }
}

TEST_F(PacedEngineTest, WithoutPacingEveryStepCarriesWhatIsLeftOfAPrompt) {
  SlowPrompts observer;
  RunRequests(model_.get(), Requests(), kAmpleBytes,
              {.max_batch_tokens = 20, .observer = &observer});
  int n_left = 20 + 60 + 25 + 110 + 40;
  for (const StepWork& work : observer.steps) {
    EXPECT_EQ(work.n_fill_tokens > 0, n_left > 0);
    n_left -= work.n_fill_tokens;
  }
  EXPECT_EQ(n_left, 0);
}

// The budget holds the longest alone, and not the first two when they end, which start together.
TEST_F(PacedEngineTest, PreemptionLosesNothing) {
  std::vector<Request> requests = Requests();
  for (Request& r : requests) r.max_tokens = 150;
  SlowPrompts observer;
  const std::vector<Trace> traces =
      RunRequests(model_.get(), requests, SequenceBytes(model_->layout(), 110 + 149),
                  {.max_batch_tokens = 20, .prompt_share = 0.3, .observer = &observer});
  int n_preemptions = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    n_preemptions += traces[i].outcome.n_preemptions;
    EXPECT_EQ(traces[i].outcome.tokens,
              RunRequests(model_.get(), {requests[i]}, kAmpleBytes, {})[0].outcome.tokens);
  }
  EXPECT_GE(n_preemptions, 1);
  EXPECT_EQ(traces[0].outcome.n_preemptions, 0);
}

}  // namespace
}  // namespace kvlathe
