// How many requests run at a time: by the bytes that their caches are going to need.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/engine.h"
#include "engine/kv_forecast.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/capacity.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlenty = 64 << 20;

std::shared_ptr<ModelWeights> SmallWeights(ThreadPool* threads, std::optional<float> dmc_offset) {
  ModelConfig c = SmallConfig(/*head_dim=*/32);
  c.max_seq_len = 1024;
  if (dmc_offset.has_value()) c.dmc = DmcConfig{.offset = *dmc_offset};
  auto weights = ModelWeights::Load(c, DType::kBf16, MakeRandomSource(3),
                                    MakeMachine(threads, SelectIsa().value()));
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

class ForecastTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = MakeSmallModel(SmallWeights(&threads_, std::nullopt), GetParam());
  }
  // Reads on until n positions are there, in steps of at most max_step.
  Status ReadTo(SequenceCache* cache, int n, int64_t max_step) {
    while (cache->n_tokens() < n) {
      if (cache->must_read_again()) {
        KVL_RETURN_IF_ERROR(model_->ReadPromptAgain(cache, ids_, max_step));
      }
      const int64_t n_new = std::min({max_step, int64_t{n - cache->n_tokens()}, cache->max_step()});
      KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(n_new)));
      const auto ids = std::span(ids_).subspan(cache->n_tokens() - n_new, n_new);
      const SequenceStep step = {cache, ids, SequenceStep::Logits::kNone};
      KVL_RETURN_IF_ERROR(model_->Forward({&step, 1}));
    }
    return OkStatus();
  }

  static constexpr int kPrompt = 300, kTokens = 520;
  std::vector<int32_t> ids_ = RandomPrompt(kTokens, 1);
  ThreadPool threads_{1};
  std::unique_ptr<Model> model_;
};

// What is forecast from anywhere is enough to go on from there.
TEST_P(ForecastTest, ASequenceGoesOnInTheBytesThatAreForecast) {
  const CacheLayout& layout = model_->layout();
  HostPool pool(kPlenty);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(kPrompt, kTokens - kPrompt);
  for (const int n_held : {0, 150, 299, 300, 301, 370, 450}) {
    const int64_t max_step = n_held < kPrompt ? 64 : 1;
    ASSERT_TRUE(ReadTo(&cache, n_held, max_step).ok());
    for (const int n_more : {1, 70}) {
      SCOPED_TRACE(testing::Message() << n_held << " and " << n_more << " more");
      auto copy = cache.Copy();
      ASSERT_TRUE(copy.ok()) << copy.status();
      const int64_t forecast =
          PeakBytesOfGrowth(layout, {n_held, n_held + n_more}, max_step, kPrompt);
      EXPECT_LE(forecast, PeakSequenceBytes(layout, n_held + n_more, 64, kPrompt));
      // What it holds already, until its next step gives back what fell out of the window, counts.
      const int64_t held = (*copy)->bytes().total();
      const int64_t others = pool.usage().used_bytes - held;
      const int64_t n_aside = kPlenty - others - std::max(held, forecast);
      ASSERT_TRUE(pool.SetAside(n_aside));
      const Status status = ReadTo(copy->get(), n_held + n_more, max_step);
      EXPECT_TRUE(status.ok()) << status;
      pool.ReturnAside(n_aside);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, ForecastTest,
    ::testing::Values("none", "kivi(bits=4,run=64)", "kivi(bits=2,run=prompt)",
                      "gear(bits=4,run=128)", "lathe(ratio=4,open=8,run=64)", "h2o(keep=0.5)",
                      "h2o(keep=0.3,prune=prompt)", "tova(budget=100)", "keyformer(keep=0.4)",
                      "snapkv(budget=100)", "kvzip(budget=100)", "kvzip(budget=100,heads=own)",
                      "kvzip(budget=150,heads=own)+kivi(bits=4)", "window(size=100)",
                      "window(size=100)+kivi(bits=4,run=64)",
                      "tova(budget=100,prune=prompt)+kivi(bits=4)", "h2o(keep=0.4)+kivi(bits=2)",
                      "snapkv(budget=120)+kivi(bits=4)", "pool(n=3)", "pool(n=4)+kivi(bits=4)"));

// What is forecast for a model that decides is what its caches hold, with the sums and the ring of
// each head, which are no blocks.
TEST(AdmissionTest, ForecastsOfMergingCachesCountTheirOpenEntries) {
  ThreadPool threads{1};
  const auto weights = SmallWeights(&threads, -50.0f);  // everything merges
  for (const char* spec : {"dmc(sink=0)", "dmc(sink=0,window=0)", "pool(n=64,sink=0)"}) {
    SCOPED_TRACE(spec);
    const auto model = MakeSmallModel(weights, spec);
    const CacheLayout& layout = model->layout();
    const int window = layout.retention->merge->window;
    // int32, then F32: the sums of the weight, of K and of V, and a ring of as many for each
    // position of the window.
    const int64_t open_bytes = 4 * RoundUp(4 + 4 * (1 + window) * (1 + 32 + 32), kObjectAlignment);
    HostPool pool(kPlenty);
    SequenceCache cache(&layout, &pool);
    const std::vector<int32_t> ids = RandomPrompt(60, 1);
    ASSERT_TRUE(cache.Extend(60).ok());
    const SequenceStep step = {&cache, ids, SequenceStep::Logits::kNone};
    ASSERT_TRUE(model->Forward({&step, 1}).ok());
    EXPECT_EQ(cache.bytes().entries, open_bytes);
    EXPECT_EQ(pool.usage().used_bytes, cache.bytes().total());
    const int64_t forecast =
        PeakBytesIfMerged(layout, {60, 61}, 1, 60, MergedCountsOf(cache).share());
    EXPECT_EQ(forecast, cache.bytes().total());  // one more joins
  }
}

// What reading a prompt took is not counted for those that have read theirs.
TEST(AdmissionTest, SequencesThatPrunedTheirPromptsMakeRoomForOthers) {
  ThreadPool threads{1};
  const auto model =
      MakeSmallModel(SmallWeights(&threads, std::nullopt), "tova(budget=64,prune=prompt)");
  const int64_t alone = PeakSequenceBytes(model->layout(), 700 + 99, 512, 700);
  HostPool pool(2 * alone);
  Engine engine({model.get()}, &pool, {});
  std::vector<RequestOutcome> outcomes;
  for (int i = 0; i < 6; ++i) {
    const auto keep = [&](auto, const RequestOutcome& o) { outcomes.push_back(o); };
    Request request{.prompt = RandomPrompt(700, i), .max_tokens = 100};
    ASSERT_TRUE(engine.Submit(request, nullptr, keep).ok());
  }
  int most_running = 0;
  while (engine.Step()) most_running = std::max(most_running, engine.n_running());
  EXPECT_EQ(most_running, 6);
  ASSERT_EQ(outcomes.size(), 6u);
  for (const RequestOutcome& o : outcomes) {
    EXPECT_EQ(o.finish_reason, FinishReason::kLength);
    EXPECT_EQ(o.n_preemptions, 0);
  }
}

// A model that decides what merges: everything, about half of it, or nothing.
class MergingAdmissionTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr float kMergesAll = -50, kMergesHalf = 0, kMergesNothing = 50;

  std::unique_ptr<Model> Make(float offset) {
    return MakeSmallModel(SmallWeights(&threads_, offset), GetParam());
  }
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (const int n_prompt : {340, 60, 250, 400, 130, 300, 20, 200}) {
      requests.push_back({.prompt = RandomPrompt(n_prompt, 1), .max_tokens = 150});
    }
    return requests;
  }
  static int64_t WorstBytes(const Model& model, const Request& r) {
    const auto n_prompt = static_cast<int64_t>(r.prompt.size());
    return PeakSequenceBytes(model.layout(), n_prompt + r.max_tokens - 1, 512, n_prompt);
  }
  struct Ran {
    std::vector<RequestOutcome> outcomes;
    int most_running = 0;
  };
  static Ran Run(Model* model, const std::vector<Request>& requests, int64_t budget) {
    HostPool pool(budget);
    Engine engine({model}, &pool, {.max_batch_tokens = 64});
    Ran ran;
    ran.outcomes.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto keep = [&ran, i](auto, const RequestOutcome& o) { ran.outcomes[i] = o; };
      const auto id = engine.Submit(requests[i], nullptr, keep);
      EXPECT_TRUE(id.ok()) << id.status();
    }
    while (engine.Step()) ran.most_running = std::max(ran.most_running, engine.n_running());
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return ran;
  }

  ThreadPool threads_{1};
};

TEST_P(MergingAdmissionTest, WhatMergedAdmitsOthers) {
  const auto model = Make(kMergesAll);
  const std::vector<Request> requests = Requests();
  // Holds the largest if nothing merges, and no second one.
  const Ran ran = Run(model.get(), requests, WorstBytes(*model, requests[3]));
  EXPECT_GE(ran.most_running, model->layout().seal.has_value() ? 3 : 5);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(ran.outcomes[i].finish_reason, FinishReason::kLength) << ran.outcomes[i].status;
    EXPECT_EQ(ran.outcomes[i].tokens, Run(model.get(), {requests[i]}, kPlenty).outcomes[0].tokens);
  }
}

TEST_P(MergingAdmissionTest, ARequestThatFitsOnlyMergedIsAccepted) {
  const auto model = Make(kMergesAll);
  const Request request = Requests()[3];
  const Ran ran = Run(model.get(), {request}, WorstBytes(*model, request) / 2);
  EXPECT_EQ(ran.outcomes[0].finish_reason, FinishReason::kLength) << ran.outcomes[0].status;
  EXPECT_EQ(ran.outcomes[0].tokens, Run(model.get(), {request}, kPlenty).outcomes[0].tokens);
}

TEST_P(MergingAdmissionTest, WhatRunsOutOfMemoryAloneEndsWithItsOwnError) {
  const auto model = Make(kMergesNothing);
  const std::vector<Request> requests = Requests();
  std::vector<Request> together = {requests[1], requests[3], requests[4]};
  const int64_t budget = WorstBytes(*model, requests[4]) + 4096;
  const Ran ran = Run(model.get(), together, budget);
  const RequestOutcome& failed = ran.outcomes[1];
  EXPECT_EQ(failed.finish_reason, FinishReason::kFailed);
  EXPECT_EQ(failed.status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(failed.status), HasSubstr("merged too few of its positions"));
  EXPECT_THAT(MessageOf(failed.status), HasSubstr("of 549 positions"));
  EXPECT_GT(failed.n_cached_tokens, 150);
  for (const int i : {0, 2}) {
    EXPECT_EQ(ran.outcomes[i].finish_reason, FinishReason::kLength) << ran.outcomes[i].status;
    EXPECT_EQ(ran.outcomes[i].tokens, Run(model.get(), {together[i]}, kPlenty).outcomes[0].tokens);
  }
}

// Where some heads merge less than was measured before, the newest gives way and loses nothing.
TEST_P(MergingAdmissionTest, OverflowPreempts) {
  const auto model = Make(kMergesHalf);
  const std::vector<Request> requests = Requests();
  int n_preemptions = 0;
  for (const double share : {0.6, 0.8, 1.0, 1.5}) {
    const auto budget =
        static_cast<int64_t>(share * static_cast<double>(WorstBytes(*model, requests[3])));
    const Ran ran = Run(model.get(), requests, budget);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(ran.outcomes[i].finish_reason, FinishReason::kLength) << ran.outcomes[i].status;
      EXPECT_EQ(ran.outcomes[i].tokens,
                Run(model.get(), {requests[i]}, kPlenty).outcomes[0].tokens);
      n_preemptions += ran.outcomes[i].n_preemptions;
    }
    EXPECT_EQ(ran.outcomes[0].n_preemptions, 0);
  }
  // Where heads are sealed one by one, what is set aside for their open rows leaves room enough.
  if (!model->layout().seal.has_value()) {
    EXPECT_GT(n_preemptions, 0);
  }
  EXPECT_LT(n_preemptions, 60);  // little is done twice
}

TEST_P(MergingAdmissionTest, WhatCanNeverFitIsRefused) {
  const auto model = Make(kMergesAll);
  HostPool pool(4096);
  Engine engine({model.get()}, &pool, {});
  const auto id = engine.Submit(Requests()[0], nullptr, nullptr);
  EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(id.status()), HasSubstr("the budget is"));
}

INSTANTIATE_TEST_SUITE_P(Caches, MergingAdmissionTest, ::testing::Values("dmc", "dmc+kivi(bits=4)"),
                         [](const auto& test) {
                           return std::string(test.param).size() > 3 ? "DmcKivi" : "Dmc";
                         });

}  // namespace
}  // namespace kvlathe
