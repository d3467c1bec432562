// What a sequence generates against what runs beside it, how its steps are cut, and preemption.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <ostream>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

int TotalPreemptions(const std::vector<Trace>& traces) {
  return std::accumulate(traces.begin(), traces.end(), 0,
                         [](int sum, const Trace& t) { return sum + t.outcome.n_preemptions; });
}

struct CacheCase {
  const char* name;
  DType dtype;
  bool has_basis = false;
  const char* spec = nullptr;  // of the quantizer and retention axes
  int window = 0;

  // Whether it hardly grows while decoding, so that nothing ever gives way.
  bool is_bounded = false;

  // Whether every position takes the same bytes for good.
  bool is_plain() const { return spec == nullptr && window == 0; }
};
void PrintTo(const CacheCase& c, std::ostream* out) { *out << c.name; }

class BatchingTest : public ::testing::TestWithParam<CacheCase> {
 protected:
  void SetUp() override {
    const ModelConfig c = MakeConfig();
    auto weights = ModelWeights::Load(c, GetParam().dtype, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const Spec spec = *Spec::Parse(GetParam().spec == nullptr ? "none" : GetParam().spec);
    const ModelBasis basis = HalfRankBasis(c, spec);
    PlanParts parts = PartsOf(spec, GetParam().has_basis ? &basis : nullptr);
    parts.n_sink = 4;
    auto model = CreateModel(*std::move(weights), std::move(parts));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  virtual ModelConfig MakeConfig() const {
    ModelConfig c = WideConfig(/*head_dim=*/32);
    c.attention.kinds[0].window = GetParam().window;
    return c;
  }
  // Each of many requests has the bits that it has alone.
  void ExpectIdenticalBits();

  static Request MakeRequest(int n_prompt, int max_tokens, uint64_t seed) {
    Request r;
    Random random(seed);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(kSmallVocabulary));
    r.max_tokens = max_tokens;
    return r;
  }

  // Lengths at which all but the first need a block more at their end than when they start.
  static std::vector<Request> MixedRequests() {
    const int prompts[] = {3, 60, 124, 316, 450};
    std::vector<Request> requests;
    for (int n_prompt : prompts) requests.push_back(MakeRequest(n_prompt, 80, n_prompt));
    return requests;
  }
  // Holds the first four when they start and not when they end, and each of them alone.
  int64_t TightBudget(const std::vector<Request>& requests) const {
    int64_t n_bytes = 0;
    for (int i = 0; i < 4; ++i) {
      n_bytes += SequenceBytes(model_->layout(), requests[i].prompt.size() + kBlockSize);
    }
    return n_bytes;
  }

  std::vector<Trace> RunTogether(const std::vector<Request>& requests, int64_t budget,
                                 const EngineOptions& options) {
    return RunRequests(model_.get(), requests, budget, options);
  }
  // Under a budget that makes requests give way: the fourth, of plain caches.
  std::vector<Trace> RunPreempted(const std::vector<Request>& requests,
                                  const EngineOptions& options) {
    if (GetParam().is_plain()) {
      return RunTogether(requests, TightBudget(requests), options);
    }
    // What is freed and set aside on the way depends on the spec: the smallest budget that holds
    // each request alone, and more until one is stopped.
    int64_t budget = 0;
    for (const Request& r : requests) {
      const int64_t n_prompt = static_cast<int64_t>(r.prompt.size());
      budget = std::max(budget, PeakSequenceBytes(model_->layout(), n_prompt + r.max_tokens - 1,
                                                  options.max_batch_tokens, n_prompt));
    }
    if (GetParam().is_bounded) return RunTogether(requests, budget, options);
    for (;; budget += budget / 16) {
      std::vector<Trace> traces = RunTogether(requests, budget, options);
      if (TotalPreemptions(traces) > 0 || budget > kPlenty) return traces;
    }
  }
  std::vector<Trace> RunEachAlone(const std::vector<Request>& requests) {
    std::vector<Trace> traces;
    for (const Request& r : requests) traces.push_back(RunTogether({r}, kPlenty, {}).front());
    return traces;
  }

  static constexpr int64_t kPlenty = 64 << 20;
  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

void BatchingTest::ExpectIdenticalBits() {
  model_->set_deterministic(true);
  std::vector<Request> requests = MixedRequests();
  requests[1].sampling = {.temperature = 1.5f, .top_p = 0.95f, .seed = 7};
  requests[3].sampling = {
      .temperature = 1, .repetition_penalty = 1.3f, .frequency_penalty = 0.2f, .seed = 8};
  const std::vector<Trace> alone = RunEachAlone(requests);
  const auto expect_same = [&](const std::vector<Trace>& traces, const std::string& what) {
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(traces[i].outcome.tokens, alone[i].outcome.tokens) << what << ", request " << i;
      EXPECT_TRUE(traces[i].logits == alone[i].logits) << what << ", request " << i;
    }
  };
  for (int max_batch_tokens : {2048, 48, 7}) {
    expect_same(RunTogether(requests, kPlenty, {.max_batch_tokens = max_batch_tokens}),
                fmt::format("{} tokens a step", max_batch_tokens));
  }
  for (int max_batch_tokens : {512, 33}) {
    const std::vector<Trace> traces =
        RunPreempted(requests, {.max_batch_tokens = max_batch_tokens});
    EXPECT_EQ(TotalPreemptions(traces) > 0, !GetParam().is_bounded);
    expect_same(traces, fmt::format("preempted, {} tokens a step", max_batch_tokens));
  }
}

TEST_P(BatchingTest, DeterministicLogitsHaveIdenticalBits) { ExpectIdenticalBits(); }

// A second layer with many experts, of which a hair's breadth chooses.
class ExpertsBatchingTest : public BatchingTest {
 protected:
  ModelConfig MakeConfig() const override {
    ModelConfig c = BatchingTest::MakeConfig();
    c.experts = ExpertsConfig{.n_experts = 16,
                              .n_used = 3,
                              .ffn_dim = 64,
                              .shared_ffn_dim = 32,
                              .has_shared_gate = true,
                              .score = ExpertsConfig::Score::kSigmoid,
                              .normalises = true,
                              .n_groups = 4,
                              .n_used_groups = 2,
                              .has_choice_bias = true};
    c.experts->of_layer = {false, true};
    return c;
  }
};

TEST_P(ExpertsBatchingTest, DeterministicLogitsHaveIdenticalBits) { ExpectIdenticalBits(); }

double TopTwoGap(std::vector<float> logits) {
  std::partial_sort(logits.begin(), logits.begin() + 2, logits.end(), std::greater<>());
  return logits[0] - logits[1];
}

// Without determinism logits differ by rounding; greedy choice may only where rounding decides it.
TEST_P(BatchingTest, GreedyTokensAreThoseOfEachAloneBeyondRounding) {
  const std::vector<Request> requests = MixedRequests();
  const std::vector<Trace> alone = RunEachAlone(requests);
  // The logits have a standard deviation of about 1.
  const double rounding = GetParam().dtype == DType::kBf16 ? 0.1 : 1e-4;
  const auto expect_close = [&](const std::vector<Trace>& traces, const std::string& what) {
    size_t n_compared = 0, n_all = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, request {}", what, i));
      const std::vector<int32_t>& tokens = traces[i].outcome.tokens;
      ASSERT_EQ(tokens.size(), alone[i].outcome.tokens.size());
      n_all += tokens.size();
      for (size_t t = 0; t < tokens.size(); ++t, ++n_compared) {
        for (int id = 0; id < kSmallVocabulary; ++id) {
          ASSERT_NEAR(traces[i].logits[t][id], alone[i].logits[t][id], rounding / 2) << t;
        }
        if (tokens[t] == alone[i].outcome.tokens[t]) continue;
        EXPECT_LT(TopTwoGap(alone[i].logits[t]), rounding) << "token " << t;
        break;  // another text from here on
      }
    }
    EXPECT_GT(n_compared, n_all * 3 / 4) << what;
  };
  for (int max_batch_tokens : {512, 48, 7}) {
    expect_close(RunTogether(requests, kPlenty, {.max_batch_tokens = max_batch_tokens}),
                 fmt::format("{} tokens a step", max_batch_tokens));
  }
  const std::vector<Trace> preempted = RunPreempted(requests, {});
  EXPECT_EQ(TotalPreemptions(preempted) > 0, !GetParam().is_bounded);
  expect_close(preempted, "preempted");
}

TEST_P(BatchingTest, PreemptionTakesTheNewestAndLosesNothing) {
  const std::vector<Request> requests = MixedRequests();
  const std::vector<Trace> traces = RunPreempted(requests, {});
  EXPECT_EQ(traces[0].outcome.n_preemptions, 0);  // the oldest is never stopped
  if (GetParam().is_plain()) {
    EXPECT_GE(traces[3].outcome.n_preemptions, 1);
  }
  EXPECT_EQ(TotalPreemptions(traces) > 0, !GetParam().is_bounded);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestOutcome& o = traces[i].outcome;
    EXPECT_EQ(o.finish_reason, FinishReason::kLength);
    EXPECT_EQ(o.tokens.size(), 80u);
    EXPECT_EQ(o.n_cached_tokens, static_cast<int>(requests[i].prompt.size()) + 79);
    EXPECT_EQ(o.kv_bytes.total(), SequenceBytes(model_->layout(), o.n_cached_tokens, 1,
                                                static_cast<int64_t>(requests[i].prompt.size())));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, BatchingTest,
    ::testing::Values(
        CacheCase{"Bf16None", DType::kBf16}, CacheCase{"Bf16HalfRank", DType::kBf16, true},
        CacheCase{"F32None", DType::kF32}, CacheCase{"F32HalfRank", DType::kF32, true},
        CacheCase{"Bf16Kivi", DType::kBf16, false, "kivi(bits=4,run=64)"},
        CacheCase{"Bf16Kvquant", DType::kBf16, false, "kvquant(bits=4,run=64)"},
        CacheCase{"Bf16HalfRankGear", DType::kBf16, true, "gear(bits=4,run=128,share=0.1)"},
        CacheCase{"Bf16Lathe", DType::kBf16, true, "lathe(ratio=4,open=8,run=64)"},
        CacheCase{"LatheMapsJoint", DType::kBf16, true,
                  "lathe(ratio=4,keys=block,maps=joint,run=64)"},
        CacheCase{"Bf16LatheCentred", DType::kBf16, true,
                  "lathe(ratio=4,open=8,keys=centred,run=64)"},
        CacheCase{"F32Lathe", DType::kF32, true, "lathe(ratio=4,open=8,run=128)"},
        CacheCase{"Bf16Window", DType::kBf16, false, nullptr, 90, true},
        CacheCase{"Bf16H2o", DType::kBf16, false, "h2o(keep=0.5)", 0, true},
        CacheCase{"Bf16HalfRankKeyformer", DType::kBf16, true, "keyformer(keep=0.4)", 0, true},
        CacheCase{"Bf16ExactKeyformer", DType::kBf16, true, "keyformer(keep=0.4,score=exact)", 0,
                  true},
        CacheCase{"F32ExactSnapkvKivi", DType::kF32, true,
                  "snapkv(keep=0.5,score=exact)+kivi(bits=4)", 0, true},
        CacheCase{"Bf16Kvzip", DType::kBf16, false, "kvzip(keep=0.5,window=8,chunk=128,heads=own)",
                  0, true},
        CacheCase{"Bf16TovaKivi", DType::kBf16, false, "tova(budget=200)+kivi(bits=4)", 0, true}),
    [](const auto& cache) { return cache.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Caches, ExpertsBatchingTest,
    ::testing::Values(CacheCase{"Bf16None", DType::kBf16}, CacheCase{"F32None", DType::kF32},
                      CacheCase{"Bf16Kivi", DType::kBf16, false, "kivi(bits=4,run=64)"}),
    [](const auto& cache) { return cache.param.name; });

class SchedulingTest : public BatchingTest {};

// Every one of many requests finishes under a budget that hardly holds one, with little done twice.
TEST_P(SchedulingTest, ATightBudgetNeitherBlocksNorThrashes) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(MakeRequest(20 + 13 * i, 200, i));
  HostPool pool(SequenceBytes(model_->layout(), requests.back().prompt.size() + 199));
  Engine engine({model_.get()}, &pool, {});
  std::vector<int> finished;
  int n_preemptions = 0;
  for (const Request& r : requests) {
    ASSERT_TRUE(engine
                    .Submit(r, nullptr,
                            [&](auto id, const RequestOutcome& o) {
                              finished.push_back(static_cast<int>(id));
                              EXPECT_EQ(o.tokens.size(), 200u);
                              n_preemptions += o.n_preemptions;
                            })
                    .ok());
  }
  int n_steps = 0;
  for (bool more = true; more; ++n_steps) {
    more = engine.Step();
    ASSERT_LT(n_steps, 12 * 202);  // what they would take one after the other
  }
  EXPECT_TRUE(std::is_sorted(finished.begin(), finished.end()));
  EXPECT_EQ(finished.size(), requests.size());
  EXPECT_GE(n_preemptions, 1);
  EXPECT_LE(n_preemptions, 24);
}

TEST_P(SchedulingTest, PromptsAndDecodingShareTheTokensOfAStep) {
  HostPool pool(kPlenty);
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 10});
  int n_first = 0, n_second = 0;
  const auto counting = [](int* n) {
    return [n](Engine::RequestId, const GeneratedToken&) {
      ++*n;
      return FinishReason::kNone;
    };
  };
  ASSERT_TRUE(engine.Submit(MakeRequest(10, 40, 1), counting(&n_first), nullptr).ok());
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(n_first, 1);
  ASSERT_TRUE(engine.Submit(MakeRequest(85, 5, 2), counting(&n_second), nullptr).ok());
  // One of the ten tokens decodes; 85 tokens of prompt take nine steps of nine and one of four.
  for (int step = 0; step < 9; ++step) ASSERT_TRUE(engine.Step());
  EXPECT_EQ(n_first, 10);
  EXPECT_EQ(n_second, 0);
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(n_first, 11);
  EXPECT_EQ(n_second, 1);
}

TEST_P(SchedulingTest, NoMoreSequencesRunThanAStepHasTokens) {
  HostPool pool(kPlenty);
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 3});
  int n_finished = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        engine.Submit(MakeRequest(2, 4, i), nullptr, [&](auto, auto&) { ++n_finished; }).ok());
  }
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.n_running(), 3);
  EXPECT_EQ(engine.n_waiting(), 2);
  ASSERT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(n_finished, 5);
}

INSTANTIATE_TEST_SUITE_P(F32, SchedulingTest, ::testing::Values(CacheCase{"None", DType::kF32}));

}  // namespace
}  // namespace kvlathe
