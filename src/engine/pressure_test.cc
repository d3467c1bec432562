// What runs out of memory gives up bits before it gives up its cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_forecast.h"
#include "engine/session.h"
#include "engine/small_model.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kPlentyOfBytes = 64 << 20;
constexpr int kPromptTokens = 150, kAnswerTokens = 420;

// What an engine tells of caches that lose bits or go.
class PressureObserver : public EngineObserver {
 public:
  void OnPressed(RequestId id, int64_t n_positions) override {
    pressed[id] += n_positions;
    in_step += n_positions;
    largest_run = std::max(largest_run, n_positions);
    most_in_step = std::max(most_in_step, in_step);
    order.push_back(id);
  }
  void OnPreempted(RequestId id) override {
    ++n_preempted;
    order.push_back(-id);
  }
  void OnStepBegan(const StepWork&, const EngineLoad&) override { in_step = 0; }

  std::map<RequestId, int64_t> pressed;
  std::vector<RequestId> order;  // who was pressed, and with a minus who was preempted
  int64_t in_step = 0, most_in_step = 0, largest_run = 0;
  int n_preempted = 0;
};

class PressureTest : public ::testing::Test {
 protected:
  PressureTest() {
    ModelConfig c = SmallConfig(/*head_dim=*/32);
    c.max_seq_len = 4096;
    auto weights = ModelWeights::Load(c, DType::kBf16, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    const std::shared_ptr<ModelWeights> shared = *std::move(weights);
    plain_ = MakeSmallModel(shared, "lathe(ratio=4,open=8,run=64)");
    model_ = MakeSmallModel(shared, "lathe(ratio=4,open=8,under_pressure=8,run=64)");
  }

  static std::vector<Request> Requests(int n, bool refuses = false) {
    std::vector<Request> requests;
    for (int i = 0; i < n; ++i) {
      requests.push_back({.prompt = RandomPrompt(kPromptTokens, i),
                          .max_tokens = kAnswerTokens,
                          .refuses_pressure = refuses});
    }
    return requests;
  }
  // Room for so many whole requests.
  int64_t Room(double n) const {
    const int64_t alone =
        PeakSequenceBytes(model_->layout(), kPromptTokens + kAnswerTokens, 64, kPromptTokens);
    return static_cast<int64_t>(n * static_cast<double>(alone));
  }

  struct Ran {
    std::vector<RequestOutcome> outcomes;
    PressureObserver seen;
    std::vector<RequestId> ids;
    int most_running = 0;
    int n_steps = 0;

    int n_preemptions() const {
      int n = 0;
      for (const RequestOutcome& o : outcomes) n += o.n_preemptions;
      return n;
    }
  };
  static std::unique_ptr<Ran> Run(Model* model, const std::vector<Request>& requests,
                                  int64_t budget) {
    auto ran = std::make_unique<Ran>();
    ran->outcomes.resize(requests.size());
    HostPool pool(budget);
    Engine engine({model}, &pool, {.max_batch_tokens = 64, .observer = &ran->seen});
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Submit(
          requests[i], nullptr, [&ran, i](auto, const RequestOutcome& o) { ran->outcomes[i] = o; });
      EXPECT_TRUE(id.ok()) << id.status();
      ran->ids.push_back(*id);
    }
    for (; engine.Step(); ++ran->n_steps)
      ran->most_running = std::max(ran->most_running, engine.n_running());
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_LE(pool.usage().peak_bytes, budget);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(ran->outcomes[i].finish_reason, FinishReason::kLength) << ran->outcomes[i].status;
      EXPECT_EQ(ran->outcomes[i].n_pressed_tokens, ran->seen.pressed[ran->ids[i]]);
    }
    return ran;
  }
  std::vector<int32_t> Alone(const Request& request) {
    return Run(model_.get(), {request}, kPlentyOfBytes)->outcomes[0].tokens;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> plain_, model_;
};

TEST_F(PressureTest, FewerCachesAreGivenUp) {
  const std::vector<Request> requests = Requests(8);
  int n_plain = 0, n_pressed = 0, n_plain_steps = 0, n_pressed_steps = 0;
  for (const double room : {2.2, 3.0, 3.7}) {
    const auto plain = Run(plain_.get(), requests, Room(room));
    const auto pressed = Run(model_.get(), requests, Room(room));
    EXPECT_TRUE(plain->seen.pressed.empty() ||
                std::ranges::all_of(plain->seen.pressed, [](auto& p) { return p.second == 0; }));
    EXPECT_GE(pressed->most_running, plain->most_running);
    n_plain += plain->n_preemptions();
    n_pressed += pressed->n_preemptions();
    n_plain_steps += plain->n_steps;
    n_pressed_steps += pressed->n_steps;
    // What kept its bits is what it is alone, whatever others lost.
    for (size_t i = 0; i < requests.size(); ++i) {
      if (pressed->outcomes[i].n_pressed_tokens > 0) continue;
      EXPECT_EQ(pressed->outcomes[i].tokens, Alone(requests[i])) << i;
    }
    EXPECT_EQ(pressed->outcomes[0].n_preemptions, 0);
  }
  EXPECT_GT(n_plain, 3);
  EXPECT_LT(n_pressed, n_plain);
  EXPECT_LT(n_pressed_steps, n_plain_steps);
}

TEST_F(PressureTest, WhoRefusesKeepsItsBitsAndMayBePreempted) {
  const auto all = Run(model_.get(), Requests(6, /*refuses=*/true), Room(2.2));
  const auto plain = Run(plain_.get(), Requests(6), Room(2.2));
  EXPECT_EQ(all->n_preemptions(), plain->n_preemptions());
  EXPECT_GT(all->n_preemptions(), 0);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(all->outcomes[i].n_pressed_tokens, 0);
    EXPECT_EQ(all->outcomes[i].tokens, plain->outcomes[i].tokens);
  }
  // Beside others, who make room for it.
  std::vector<Request> requests = Requests(6);
  requests[1].refuses_pressure = requests[4].refuses_pressure = true;
  const auto some = Run(model_.get(), requests, Room(2.2));
  for (const int i : {1, 4}) {
    EXPECT_EQ(some->outcomes[i].n_pressed_tokens, 0);
    EXPECT_EQ(some->outcomes[i].tokens, Alone(requests[i]));
  }
  EXPECT_LT(some->n_preemptions(), all->n_preemptions());
}

// The newest gives first, oldest runs first, and nobody is preempted while somebody has bits to
// give.
TEST_F(PressureTest, TheNewestGivesFirst) {
  const auto ran = Run(model_.get(), Requests(3), Room(2.2));
  ASSERT_FALSE(ran->seen.order.empty());
  EXPECT_GT(ran->outcomes.back().n_pressed_tokens, 0);
  // Among those that run, which are 0 and 1 at first.
  EXPECT_EQ(ran->seen.order.front(), ran->ids[ran->most_running - 1]);
  EXPECT_LE(ran->outcomes[0].n_pressed_tokens, ran->outcomes[1].n_pressed_tokens);
}

// What admission counts on is what a cache gives up.
TEST_F(PressureTest, AdmissionCountsTheBytesThatCachesGiveUp) {
  for (const int n_tokens : {90, 131, 260, 400}) {
    HostPool pool(kPlentyOfBytes);
    SequenceCache cache(&model_->layout(), &pool);
    cache.set_n_prompt(200);
    while (cache.n_tokens() < n_tokens) {
      const auto n = std::min<int64_t>({32, n_tokens - cache.n_tokens(), cache.max_step()});
      ASSERT_TRUE(cache.Extend(static_cast<int>(n)).ok());
      const std::vector<int32_t> ids = RandomPrompt(static_cast<int>(n), cache.n_tokens());
      const SequenceStep step{&cache, ids};
      ASSERT_TRUE(model_->Forward({&step, 1}).ok());
    }
    const int64_t whole = cache.bytes().total();
    const int n_runs = static_cast<int>(cache.head(0, 0).runs().size());
    for (int r = 0; r + 1 < n_runs; ++r) {
      ASSERT_EQ(cache.RunToPress(), r);
      ASSERT_TRUE(model_->PressRun(&cache, r).ok());
    }
    const int64_t given_up = BytesToPressOff(model_->layout(), n_tokens, 200);
    EXPECT_EQ(given_up > 0, n_tokens > 200);
    EXPECT_EQ(whole - cache.bytes().total(), given_up);
    EXPECT_EQ(cache.bytes_pressed_off(), given_up);
  }
}

// Where prompts are most of what is held, admission is what keeps memory from running out.
TEST_F(PressureTest, SequencesAreAdmittedByWhatTheyCouldGiveUp) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back({.prompt = RandomPrompt(1200, i), .max_tokens = 30});
  }
  const int64_t budget = 3 * PeakSequenceBytes(model_->layout(), 1230, 64, 1200);
  const auto plain = Run(plain_.get(), requests, budget);
  const auto pressed = Run(model_.get(), requests, budget);
  EXPECT_EQ(plain->most_running, 3);
  EXPECT_GE(pressed->most_running, 5);
  EXPECT_EQ(pressed->n_preemptions(), 0);
  for (Request& request : requests) request.refuses_pressure = true;
  EXPECT_EQ(Run(model_.get(), requests, budget)->most_running, 3);
}

TEST_F(PressureTest, AStepSealsNoMoreAgainThanItsBound) {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back({.prompt = RandomPrompt(1500, i), .max_tokens = 300});
  }
  const int64_t budget = PeakSequenceBytes(model_->layout(), 1800, 64, 1500) * 5 / 2;
  const auto ran = Run(model_.get(), requests, budget);
  EXPECT_GT(ran->seen.largest_run, 0);
  EXPECT_LT(ran->seen.most_in_step, Engine::kMostPressedPositions + ran->seen.largest_run);
}

// A session whose cache lost bits is saved, loaded and gone on with as it was.
TEST_F(PressureTest, ASessionGoesOnWithTheRunsThatItHas) {
  const ScratchFolder folder;
  const SequenceIdentity identity = {
      Spec::Parse("lathe(ratio=4,open=8,under_pressure=8,run=64)")->ToString(), "a model"};
  const std::string path = folder / "session";
  HostPool pool(Room(2.2)), plenty(kPlentyOfBytes);
  Session session;
  {
    Engine engine({model_.get()}, &pool, {.max_batch_tokens = 64});
    for (const Request& request : Requests(4)) {
      ASSERT_TRUE(engine
                      .Submit(request, nullptr,
                              [&](auto id, const RequestOutcome& o) {
                                if (o.n_pressed_tokens > 0 && session.cache == nullptr) {
                                  session = engine.TakeSession(id);
                                }
                              })
                      .ok());
    }
    ASSERT_TRUE(engine.RunUntilIdle().ok());
  }
  ASSERT_NE(session.cache, nullptr);
  EXPECT_GT(session.cache->n_pressed(), 0);
  ASSERT_TRUE(SaveSession(session, identity, path).ok());
  auto loaded = LoadSession(path, {identity, &model_->layout(), 2048}, kSmallVocabulary, &plenty);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->cache->pressed_runs(), session.cache->pressed_runs());
  EXPECT_EQ(loaded->cache->bytes().total(), session.cache->bytes().total());
  EXPECT_EQ(plenty.usage().used_bytes, loaded->cache->bytes().total());
  const auto go_on = [&](Session from, BlockPool* of) {
    std::vector<int32_t> tokens;
    Engine engine({model_.get()}, of, {});
    EXPECT_TRUE(engine
                    .Submit(
                        {.max_tokens = 40}, nullptr,
                        [&](auto, const RequestOutcome& o) { tokens = o.tokens; }, std::move(from))
                    .ok());
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(tokens.size(), 40u);
    return tokens;
  };
  EXPECT_EQ(go_on(*std::move(loaded), &plenty), go_on(std::move(session), &pool));
}

// A cache that lost bits is not what others would have: nobody begins behind it.
TEST_F(PressureTest, WhatLostBitsIsNotStored) {
  HostPool pool(Room(2.2));
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 64, .prefix_bytes = Room(2.2)});
  const std::vector<Request> requests = Requests(6);
  for (int round = 0; round < 2; ++round) {
    std::vector<RequestOutcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(engine
                      .Submit(requests[i], nullptr,
                              [&, i](auto, const RequestOutcome& o) { outcomes[i] = o; })
                      .ok());
    }
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    int n_pressed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      n_pressed += outcomes[i].n_pressed_tokens > 0 ? 1 : 0;
      if (outcomes[i].n_pressed_tokens > 0) continue;
      EXPECT_EQ(outcomes[i].tokens, Alone(requests[i])) << round << ", " << i;
    }
    EXPECT_GT(n_pressed, 0);
    EXPECT_EQ(pool.usage().needed_bytes(), 0);
  }
}

}  // namespace
}  // namespace kvlathe
