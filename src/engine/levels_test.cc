// Requests of several levels in one engine, their log-probabilities, and what may be generated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRoomy = 64 << 20;

class LevelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights =
        ModelWeights::Load(WideConfig(/*head_dim=*/32), DType::kBf16, MakeRandomSource(3),
                           MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::shared_ptr<ModelWeights> shared = *std::move(weights);
    for (const char* spec : {"none", "kivi(bits=4,run=64)", "lathe(ratio=4,open=8,run=64)"}) {
      models_.push_back(MakeSmallModel(shared, spec));
      levels_.push_back(models_.back().get());
    }
  }
  static std::vector<Request> MixedRequests() {
    std::vector<Request> requests;
    for (int i = 0; i < 9; ++i) {
      requests.push_back(
          {.prompt = RandomPrompt(20 + 40 * i, i), .max_tokens = 150, .level = i % 3});
      if (i % 2 == 1) requests[i].sampling = {.temperature = 1, .seed = 7};
    }
    return requests;
  }
  std::vector<RequestOutcome> Run(const std::vector<Request>& requests, int64_t budget,
                                  int max_batch_tokens = 512) {
    HostPool pool(budget);
    Engine engine(levels_, &pool, {.max_batch_tokens = max_batch_tokens});
    std::vector<RequestOutcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto keep = [&outcomes, i](auto, const RequestOutcome& o) { outcomes[i] = o; };
      const auto id = engine.Submit(requests[i], nullptr, keep);
      EXPECT_TRUE(id.ok()) << id.status();
    }
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return outcomes;
  }

  ThreadPool threads_{1};
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<Model*> levels_;
};

TEST_F(LevelsTest, EachGeneratesWhatItDoesAloneAlsoThroughPreemption) {
  const std::vector<Request> requests = MixedRequests();
  std::vector<std::vector<int32_t>> alone;
  for (const Request& r : requests) alone.push_back(Run({r}, kRoomy)[0].tokens);
  const int64_t tight = PeakSequenceBytes(levels_[0]->layout(), 500, 512, 340);
  int n_preemptions = 0;
  const std::pair<int64_t, int> cases[] = {{kRoomy, 512}, {kRoomy, 17}, {tight, 64}};
  for (const auto& [budget, n_batch] : cases) {
    const std::vector<RequestOutcome> outcomes = Run(requests, budget, n_batch);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(outcomes[i].tokens, alone[i]) << i << " of " << budget;
      n_preemptions += outcomes[i].n_preemptions;
    }
  }
  EXPECT_GT(n_preemptions, 0);
  // Levels differ in what they hold.
  const Request r = requests[8];
  std::set<int64_t> n_bytes;
  for (const int level : {0, 1, 2}) {
    Request of_level = r;
    of_level.level = level;
    n_bytes.insert(Run({of_level}, kRoomy)[0].kv_bytes.total());
  }
  EXPECT_EQ(n_bytes.size(), 3u);
}

// Threads come and go on every level while memory is short; what is not cancelled is what it would
// be alone.
TEST_F(LevelsTest, ThreadsThatSubmitAndCancelDisturbNobody) {
  constexpr int kThreads = 4, kRounds = 3;
  const std::vector<Request> requests = MixedRequests();
  std::vector<std::vector<int32_t>> alone;
  for (const Request& r : requests) alone.push_back(Run({r}, kRoomy)[0].tokens);
  HostPool pool(PeakSequenceBytes(levels_[0]->layout(), 500, 512, 340) * 3 / 2);
  Engine engine(levels_, &pool, {.max_batch_tokens = 64});
  std::atomic<int> n_left = kThreads, n_steps = 0;
  std::atomic<int> n_whole = 0, n_cancelled = 0, n_preemptions = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread);
      for (size_t i = 0; i < kRounds * requests.size(); ++i) {
        const size_t which = random.Below(requests.size());
        const auto end = [&, which](auto, const RequestOutcome& o) {
          n_preemptions += o.n_preemptions;
          if (o.finish_reason == FinishReason::kCancelled) {
            ++n_cancelled;
            return;
          }
          EXPECT_EQ(o.tokens, alone[which]) << which;
          ++n_whole;
        };
        const auto id = engine.Submit(requests[which], nullptr, end);
        ASSERT_TRUE(id.ok()) << id.status();
        // In steps of the engine, which on a loaded machine are as slow as everything else.
        const int goes_on_at = n_steps + static_cast<int>(random.Below(6));
        while (n_steps < goes_on_at) std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (random.Below(3) == 0) engine.Cancel(*id);
      }
      --n_left;
    });
  }
  while (n_left > 0 || engine.n_running() + engine.n_waiting() > 0) {
    engine.Step();
    ++n_steps;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_whole + n_cancelled, static_cast<int>(kThreads * kRounds * requests.size()));
  EXPECT_GT(n_whole, 0);
  EXPECT_GT(n_cancelled, 0);
  EXPECT_GT(n_preemptions, 0);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST_F(LevelsTest, RefusesALevelThatIsNotThereAndASessionOfAnother) {
  HostPool pool(kRoomy);
  Engine engine(levels_, &pool, {});
  for (const int level : {-1, 3}) {
    const auto id = engine.Submit({.prompt = {1}, .level = level}, nullptr, nullptr);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(id.status()), HasSubstr("3 levels"));
  }
  Session session;
  const auto keep = [&](auto id, auto&) { session = engine.TakeSession(id); };
  const Request first = {.prompt = RandomPrompt(30, 1), .max_tokens = 5, .level = 1};
  ASSERT_TRUE(engine.Submit(first, nullptr, keep).ok());
  ASSERT_TRUE(engine.RunUntilIdle().ok());
  const auto id = engine.Submit({.prompt = {1}, .level = 0}, nullptr, nullptr, std::move(session));
  EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(id.status()), HasSubstr("is of level 1"));
}

// The log-softmax, in double and literally.
std::vector<double> LiteralLogprobs(std::span<const float> logits) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  std::vector<double> logprobs;
  for (const float x : logits) logprobs.push_back(x - std::log(sum));
  return logprobs;
}

void ExpectLogprobs(const TokenLogprobs& got, std::span<const float> logits, int32_t token,
                    int n_top) {
  const std::vector<double> want = LiteralLogprobs(logits);
  EXPECT_EQ(got.chosen.token, token);
  EXPECT_NEAR(got.chosen.logprob, want[token], 1e-5);
  std::vector<int32_t> order(want.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
  EXPECT_EQ(got.chosen_rank, std::ranges::find(order, token) - order.begin() + 1);
  ASSERT_EQ(got.top.size(), static_cast<size_t>(n_top));
  for (int i = 0; i < n_top; ++i) {
    EXPECT_EQ(got.top[i].token, order[i]);
    EXPECT_NEAR(got.top[i].logprob, want[order[i]], 1e-5);
  }
}

TEST_F(LevelsTest, LogprobsAreTheLiteralLogSoftmax) {
  Request request = {.prompt = RandomPrompt(150, 1),
                     .max_tokens = 20,
                     .n_top_logprobs = 5,
                     .prompt_logprobs = true};
  request.sampling = {.temperature = 1.3f, .repetition_penalty = 1.5f, .seed = 3};
  // Logits of the prompt, read at once.
  HostPool pool(kRoomy);
  std::vector<std::vector<float>> rows;
  {
    SequenceCache cache(&levels_[0]->layout(), &pool);
    cache.set_n_prompt(150);
    ASSERT_TRUE(cache.Extend(150).ok());
    const SequenceStep step = {&cache, request.prompt, SequenceStep::Logits::kAll};
    ASSERT_TRUE(levels_[0]->Forward({&step, 1}).ok());
    for (int i = 0; i < 150; ++i) {
      rows.emplace_back(levels_[0]->logits(i).begin(), levels_[0]->logits(i).end());
    }
  }
  for (const int max_batch_tokens : {512, 33}) {
    Engine engine({levels_[0]}, &pool, {.max_batch_tokens = max_batch_tokens});
    int n_tokens = 0;
    const auto on_token = [&](auto, const GeneratedToken& token) {
      EXPECT_EQ(token.prompt_logprobs != nullptr, n_tokens++ == 0);
      EXPECT_NE(token.logprobs, nullptr);
      const int64_t last = levels_[0]->n_logit_rows() - 1;
      ExpectLogprobs(*token.logprobs, levels_[0]->logits(last), token.id, 5);
      return FinishReason::kNone;
    };
    RequestOutcome outcome;
    const auto keep = [&](auto, const RequestOutcome& o) { outcome = o; };
    ASSERT_TRUE(engine.Submit(request, on_token, keep).ok());
    ASSERT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(n_tokens, 20);
    ASSERT_EQ(outcome.prompt_logprobs.size(), 150u);
    EXPECT_TRUE(std::isnan(outcome.prompt_logprobs[0].chosen.logprob));
    EXPECT_TRUE(outcome.prompt_logprobs[0].top.empty());
    for (int i = 1; i < 150; ++i) {
      ExpectLogprobs(outcome.prompt_logprobs[i], rows[i - 1], request.prompt[i], 5);
    }
  }
}

TEST_F(LevelsTest, LogprobsOutOfRangeAreRefused) {
  HostPool pool(kRoomy);
  Engine engine(levels_, &pool, {});
  for (const int n : {-1, 21}) {
    const auto id = engine.Submit({.prompt = {1}, .n_top_logprobs = n}, nullptr, nullptr);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument) << n;
  }
  const auto id = engine.Submit({.prompt = {1}, .prompt_logprobs = true}, nullptr, nullptr);
  EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
}

// Even and odd tokens in turn, complete after n; or nothing.
class Alternating : public TokenConstraint {
 public:
  explicit Alternating(int n) : n_(n) {}
  void Mask(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (n_ == 0 || i % 2 != static_cast<size_t>(n_taken_ % 2)) {
        logits[i] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  Status Accept(int32_t token) override {
    EXPECT_EQ(token % 2, n_taken_ % 2);
    ++n_taken_;
    return OkStatus();
  }
  bool is_complete() const override { return n_taken_ == n_; }

 private:
  int n_, n_taken_ = 0;
};

TEST_F(LevelsTest, ConstraintsHoldAlsoThroughPreemptionAndEndTheRequest) {
  const auto with_constraints = [&] {
    std::vector<Request> requests = MixedRequests();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 3 != 1) requests[i].constraint = std::make_shared<Alternating>(120);
    }
    return requests;
  };
  const std::vector<RequestOutcome> plenty = Run(with_constraints(), kRoomy);
  const int64_t budget = PeakSequenceBytes(levels_[0]->layout(), 500, 512, 340);
  const std::vector<RequestOutcome> tight = Run(with_constraints(), budget);
  int n_preemptions = 0;
  for (size_t i = 0; i < plenty.size(); ++i) {
    EXPECT_EQ(plenty[i].tokens, tight[i].tokens) << i;
    n_preemptions += tight[i].n_preemptions;
    EXPECT_EQ(plenty[i].tokens.size(), i % 3 != 1 ? 120u : 150u);
    EXPECT_EQ(plenty[i].finish_reason, i % 3 != 1 ? FinishReason::kStop : FinishReason::kLength);
  }
  EXPECT_GT(n_preemptions, 0);
}

TEST_F(LevelsTest, AConstraintThatLetsNothingPassEndsItsRequestAlone) {
  std::vector<Request> requests = MixedRequests();
  requests[4].constraint = std::make_shared<Alternating>(0);
  HostPool pool(kRoomy);
  Engine engine(levels_, &pool, {});
  std::vector<RequestOutcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto keep = [&, i](auto, const RequestOutcome& o) { outcomes[i] = o; };
    ASSERT_TRUE(engine.Submit(requests[i], nullptr, keep).ok());
  }
  EXPECT_EQ(engine.RunUntilIdle().code(), StatusCode::kInternal);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outcomes[i].finish_reason, i == 4 ? FinishReason::kFailed : FinishReason::kLength);
  }
}

TEST_F(LevelsTest, AFullQueueRefusesAndTakesMoreOnceThereIsRoom) {
  HostPool pool(kRoomy);
  Engine engine(levels_, &pool, {.max_waiting = 2});
  const Request request = {.prompt = {1, 2, 3}, .max_tokens = 2};
  ASSERT_TRUE(engine.Submit(request, nullptr, nullptr).ok());
  ASSERT_TRUE(engine.Submit(request, nullptr, nullptr).ok());
  const auto refused = engine.Submit(request, nullptr, nullptr);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("the queue is full: 2 requests wait"));
  engine.Step();
  EXPECT_TRUE(engine.Submit(request, nullptr, nullptr).ok());
  EXPECT_TRUE(engine.RunUntilIdle().ok());
}

TEST_F(LevelsTest, WaitForWorkEndsWithARequestAWakeOrTheTime) {
  using namespace std::chrono_literals;
  HostPool pool(kRoomy);
  Engine engine(levels_, &pool, {});
  EXPECT_FALSE(engine.WaitForWork(1ms));
  engine.Wake();
  EXPECT_FALSE(engine.WaitForWork(10min));  // woken before it began
  std::thread waker([&] { engine.Wake(); });
  EXPECT_FALSE(engine.WaitForWork(10min));
  waker.join();
  std::thread other(
      [&] { EXPECT_TRUE(engine.Submit({.prompt = {1}, .max_tokens = 1}, nullptr, nullptr).ok()); });
  EXPECT_TRUE(engine.WaitForWork(10min));
  other.join();
  EXPECT_TRUE(engine.RunUntilIdle().ok());
}

}  // namespace
}  // namespace kvlathe
