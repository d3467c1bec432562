// What an observer sees, and requests that come and go on other threads than the one that steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

class ObserverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    model_->set_deterministic(true);
  }
  static Request MakeRequest(int n_prompt, int max_tokens) {
    Request r;
    Random random(n_prompt);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(kSmallVocabulary));
    r.max_tokens = max_tokens;
    return r;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

// Writes down all that it is told, and checks it against what the engine says of itself.
class Recorder : public EngineObserver {
 public:
  struct Seen {
    std::string events;  // a letter each: Admitted, Preempted, First token, Token, finished (E)
    std::vector<int32_t> tokens;
    std::optional<RequestOutcome> outcome;
  };

  void OnAdmitted(RequestId id, double queue_ms) override {
    EXPECT_GE(queue_ms, 0);
    EXPECT_FALSE(is_in_step_);
    Add(id, 'A');
  }
  void OnPreempted(RequestId id) override {
    EXPECT_FALSE(is_in_step_);
    Add(id, 'P');
  }
  void OnStepBegan(const StepWork& work, const EngineLoad& load) override {
    EXPECT_FALSE(std::exchange(is_in_step_, true));
    EXPECT_EQ(work.step_idx, n_steps++);
    EXPECT_GE(work.n_decode_tokens + work.n_fill_tokens, work.n_sequences);
    EXPECT_LE(work.n_sequences, load.n_running);
    EXPECT_GT(load.pool.used_by_kind[static_cast<int>(ObjectKind::kBlock)], 0);
    n_decode_tokens += work.n_decode_tokens;
    n_fill_tokens += work.n_fill_tokens;
    longest_queue = std::max(longest_queue, load.n_waiting);
  }
  void OnFirstToken(RequestId id, double ttft_ms) override {
    EXPECT_GT(ttft_ms, 0);
    Add(id, 'F');
  }
  void OnToken(RequestId id, int32_t token) override {
    Add(id, 'T');
    seen[id].tokens.push_back(token);
  }
  void OnFinished(RequestId id, const RequestOutcome& outcome) override {
    Add(id, 'E');
    seen[id].outcome = outcome;
  }
  void OnStepEnded(const StepWork& work, const EngineLoad& load, double seconds,
                   const Status& status) override {
    EXPECT_TRUE(std::exchange(is_in_step_, false));
    EXPECT_EQ(work.step_idx + 1, n_steps);
    EXPECT_GT(seconds, 0);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(load.reference_bytes > 0, load.n_running > 0);
    last_load = load;
  }

  std::map<RequestId, Seen> seen;
  int64_t n_steps = 0, n_decode_tokens = 0, n_fill_tokens = 0;
  int longest_queue = 0;
  EngineLoad last_load;

 private:
  void Add(RequestId id, char event) { seen[id].events += event; }

  bool is_in_step_ = false;
};

TEST_F(ObserverTest, SeesWhatEachRequestGoesThrough) {
  constexpr int kRequests = 5, kPrompt = 60, kTokens = 70;
  for (const bool is_tight : {false, true}) {
    // Five blocks for each head: two sequences begin with two, and the second gives way to the
    // first when both want a third. The rest is for their tables.
    const int64_t budget = is_tight ? SequenceBytes(model_->layout(), 320) + 4096 : 64 << 20;
    HostPool pool(budget);
    Recorder recorder;
    Engine engine({model_.get()}, &pool, {.max_sequences = 3, .observer = &recorder});
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(engine.Submit(MakeRequest(kPrompt, kTokens), nullptr, nullptr).ok());
    }
    ASSERT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(recorder.seen.size(), static_cast<size_t>(kRequests));
    int n_preemptions = 0;
    for (const auto& [id, seen] : recorder.seen) {
      ASSERT_TRUE(seen.outcome.has_value());
      EXPECT_EQ(seen.outcome->finish_reason, FinishReason::kLength);
      EXPECT_EQ(seen.tokens, seen.outcome->tokens);
      EXPECT_EQ(seen.tokens.size(), static_cast<size_t>(kTokens));
      n_preemptions += seen.outcome->n_preemptions;
      // Without preemptions: admitted, first token, tokens, the end.
      std::string events = seen.events;
      for (size_t at; (at = events.find("PA")) != std::string::npos;) events.erase(at, 2);
      EXPECT_EQ(events, "AF" + std::string(kTokens, 'T') + "E") << seen.events;
      EXPECT_EQ(std::ranges::count(seen.events, 'P'), seen.outcome->n_preemptions);
    }
    EXPECT_EQ(n_preemptions > 0, is_tight);
    if (!is_tight) {
      EXPECT_EQ(recorder.n_fill_tokens, kRequests * kPrompt);
      EXPECT_EQ(recorder.n_decode_tokens, kRequests * (kTokens - 1));
    }
    EXPECT_GE(recorder.longest_queue, kRequests - 3);
    EXPECT_EQ(recorder.last_load.n_running + recorder.last_load.n_waiting, 0);
    EXPECT_EQ(recorder.last_load.pool.used_bytes, 0);
    EXPECT_EQ(recorder.last_load.pool.budget_bytes, budget);
  }
}

// Cancels each request with its third token, and submits another in its place.
class Replacer : public EngineObserver {
 public:
  void OnToken(RequestId id, int32_t) override {
    if (++n_tokens[id] == 3) EXPECT_TRUE(engine->Cancel(id));
  }
  void OnFinished(RequestId, const RequestOutcome& outcome) override {
    EXPECT_EQ(outcome.finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(outcome.status.code(), StatusCode::kCancelled);
    EXPECT_EQ(outcome.tokens.size(), 3u);
    if (++n_finished < 4) EXPECT_TRUE(engine->Submit(request, nullptr, nullptr).ok());
  }

  Engine* engine = nullptr;
  Request request;
  std::map<RequestId, int> n_tokens;
  int n_finished = 0;
};

TEST_F(ObserverTest, MaySubmitAndCancel) {
  HostPool pool(64 << 20);
  Replacer replacer;
  Engine engine({model_.get()}, &pool, {.observer = &replacer});
  replacer.engine = &engine;
  replacer.request = MakeRequest(20, 100);
  ASSERT_TRUE(engine.Submit(replacer.request, nullptr, nullptr).ok());
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(replacer.n_finished, 4);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

// Keeps the tokens of answers, and cancels one request with its third token.
class AnswerRecorder : public EngineObserver {
 public:
  void OnToken(RequestId id, int32_t) override {
    if (id == to_cancel && ++n_tokens == 3) EXPECT_TRUE(engine->Cancel(id));
  }
  void OnAnswered(RequestId id, const AnsweredRequest& answered) override {
    EXPECT_EQ(answered.n_read, 20);
    EXPECT_EQ(answered.n_cache_prompt, 20);
    EXPECT_EQ(&answered.layout, layout);
    answers[id].assign(answered.tokens.begin(), answered.tokens.end());
  }
  void OnFinished(RequestId id, const RequestOutcome& outcome) override {
    if (answers.contains(id)) {
      EXPECT_TRUE(std::ranges::equal(std::span(answers[id]).subspan(20), outcome.tokens));
    }
  }

  Engine* engine = nullptr;
  const CacheLayout* layout = nullptr;
  RequestId to_cancel = 0;
  int n_tokens = 0;
  std::map<RequestId, std::vector<int32_t>> answers;
};

TEST_F(ObserverTest, IsToldTheTokensOfWhatEndedWellAndAnswersSomebody) {
  HostPool pool(64 << 20);
  AnswerRecorder recorder;
  Engine engine({model_.get()}, &pool, {.observer = &recorder});
  recorder.engine = &engine;
  recorder.layout = &model_->layout();
  Request request = MakeRequest(20, 10);
  ASSERT_TRUE(engine.Submit(request, nullptr, nullptr).ok());  // no answer_id
  request.answer_id = "a";
  const auto answered = engine.Submit(request, nullptr, nullptr);
  const auto stopped = engine.Submit(
      request, [](auto, const GeneratedToken&) { return FinishReason::kStop; }, nullptr);
  const auto failed = engine.Submit(
      request, [](auto, const GeneratedToken&) { return FinishReason::kFailed; }, nullptr);
  const auto cancelled = engine.Submit(request, nullptr, nullptr);
  ASSERT_TRUE(answered.ok() && stopped.ok() && failed.ok() && cancelled.ok());
  recorder.to_cancel = *cancelled;
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  ASSERT_EQ(recorder.answers.size(), 2u);
  EXPECT_EQ(recorder.answers[*answered].size(), 30u);
  EXPECT_EQ(recorder.answers[*stopped].size(), 21u);
}

TEST_F(ObserverTest, TheBytesOfWhatRunsAreThoseOfThePool) {
  HostPool pool(64 << 20);
  Engine engine({model_.get()}, &pool, {});
  EXPECT_EQ(engine.RunningBytes().total(), 0);
  for (const int n_prompt : {30, 100}) {
    ASSERT_TRUE(engine.Submit(MakeRequest(n_prompt, 90), nullptr, nullptr).ok());
  }
  for (int i = 0; i < 80; ++i) {
    engine.Step();
    const ByteKinds kinds = engine.RunningBytes();
    EXPECT_EQ(kinds.total(), pool.usage().used_bytes);
    EXPECT_GT(kinds.plain, kinds.tables);
    EXPECT_EQ(kinds.codes, 0);
  }
}

// A request that is cancelled while the step computes that would end it ends as cancelled.
TEST_F(ObserverTest, ACancelledRequestNeverEndsOtherwise) {
  HostPool pool(64 << 20);
  Engine engine({model_.get()}, &pool, {});
  RequestOutcome outcome;
  const auto id = engine.Submit(
      MakeRequest(20, 1),
      [&](auto request, const GeneratedToken&) {
        EXPECT_TRUE(engine.Cancel(request));
        return FinishReason::kNone;
      },
      [&](auto, const RequestOutcome& o) { outcome = o; });
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(outcome.tokens.size(), 1u);
  EXPECT_FALSE(engine.Cancel(*id));
}

TEST_F(ObserverTest, RequestsComeAndGoOnManyThreads) {
  constexpr int kThreads = 4, kRequests = 12;
  HostPool pool(SequenceBytes(model_->layout(), 600));
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 64});
  std::mutex mutex;
  std::map<Engine::RequestId, int> n_finished;
  std::map<Engine::RequestId, FinishReason> reasons;
  std::map<Engine::RequestId, bool> is_cancelled;
  std::atomic<int> n_left = kThreads;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread);
      for (int i = 0; i < kRequests; ++i) {
        const auto id = engine.Submit(MakeRequest(5 + random.Below(60), 1 + random.Below(20)),
                                      nullptr, [&](auto finished, const RequestOutcome& outcome) {
                                        const std::lock_guard lock(mutex);
                                        ++n_finished[finished];
                                        reasons[finished] = outcome.finish_reason;
                                      });
        ASSERT_TRUE(id.ok()) << id.status();
        for (int wait = random.Below(200); wait > 0; --wait) std::this_thread::yield();
        const bool cancels = random.Below(2) == 0;
        const bool was_there = cancels && engine.Cancel(*id);
        const std::lock_guard lock(mutex);
        is_cancelled[*id] = was_there;
      }
      --n_left;
    });
  }
  while (n_left > 0 || engine.n_running() + engine.n_waiting() > 0) engine.Step();
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(is_cancelled.size(), static_cast<size_t>(kThreads * kRequests));
  for (const auto& [id, cancelled] : is_cancelled) {
    EXPECT_EQ(n_finished[id], 1);
    EXPECT_EQ(reasons[id], cancelled ? FinishReason::kCancelled : FinishReason::kLength);
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

}  // namespace
}  // namespace kvlathe
