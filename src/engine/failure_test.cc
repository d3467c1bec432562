// What a sequence that fails leaves of itself and of those that run beside it.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <ostream>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int32_t kOverflowing = 77;  // the token whose values are infinite

struct FailureCase {
  const char* name;
  const char* spec;
  DType dtype = DType::kBf16;
};
void PrintTo(const FailureCase& c, std::ostream* out) { *out << c.name; }

class FailureTest : public ::testing::TestWithParam<FailureCase> {
 protected:
  static constexpr int64_t kPlenty = 64 << 20;

  void SetUp() override {
    const ModelConfig c = WideConfig(/*head_dim=*/32);
    auto weights = ModelWeights::Load(c, GetParam().dtype,
                                      std::make_unique<OverflowingSource>(3, kOverflowing),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const Spec spec = *Spec::Parse(GetParam().spec);
    const ModelBasis basis = HalfRankBasis(c, spec);
    PlanParts parts = PartsOf(spec, FactsOf(spec.sealing()).splits_bits ? &basis : nullptr);
    parts.n_sink = 4;
    auto model = CreateModel(*std::move(weights), std::move(parts));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    model_->set_deterministic(true);
  }

  // Neither holds nor generates the overflowing token.
  static Request Sound(int n_prompt, uint64_t seed) {
    Request r;
    Random random(seed);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(kOverflowing));
    r.max_tokens = 40;
    r.sampling.logit_bias[kOverflowing] = -100;
    return r;
  }
  static Request OverflowingAt(int n_prompt, int position) {
    Request r = Sound(n_prompt, 500);
    r.prompt[position] = kOverflowing;
    return r;
  }
  // Generates the token first, so that the step behind it fails.
  static Request OverflowingWhileDecoding(int n_prompt) {
    Request r = Sound(n_prompt, 501);
    r.sampling.logit_bias[kOverflowing] = 100;
    return r;
  }

  std::vector<RequestOutcome> RunAll(const std::vector<Request>& requests, int64_t budget,
                                     const EngineOptions& options, Status* status) {
    HostPool pool(budget);
    std::vector<RequestOutcome> outcomes(requests.size());
    std::vector<int> n_finished(requests.size());
    Engine engine({model_.get()}, &pool, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto on_finish = [&, i](auto, const RequestOutcome& o) {
        outcomes[i] = o;
        ++n_finished[i];
      };
      EXPECT_TRUE(engine.Submit(requests[i], nullptr, on_finish).ok());
    }
    *status = engine.RunUntilIdle();
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_EQ(n_finished, std::vector<int>(requests.size(), 1));
    return outcomes;
  }

  static void ExpectFailed(const RequestOutcome& outcome, const std::vector<int32_t>& tokens) {
    EXPECT_EQ(outcome.finish_reason, FinishReason::kFailed);
    EXPECT_EQ(outcome.status.code(), StatusCode::kDataLoss) << outcome.status;
    EXPECT_EQ(outcome.tokens, tokens);
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(FailureTest, ARequestAloneEndsWithItsErrorAndTheNextSucceeds) {
  Status status;
  const Request sound = Sound(150, 1);
  const RequestOutcome expected = RunAll({sound}, kPlenty, {}, &status)[0];
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(expected.tokens.size(), 40u);
  for (const int max_batch_tokens : {512, 16}) {
    HostPool pool(kPlenty);
    Engine engine({model_.get()}, &pool, {.max_batch_tokens = max_batch_tokens});
    RequestOutcome outcome;
    const auto run = [&](const Request& request) {
      outcome = {};
      EXPECT_TRUE(engine
                      .Submit(request, nullptr,
                              [&](auto, const RequestOutcome& o) {
                                outcome = o;
                                if (!o.status.ok()) EXPECT_EQ(pool.usage().used_bytes, 0);
                              })
                      .ok());
      const Status ended = engine.RunUntilIdle();
      EXPECT_EQ(ended, outcome.status);
      EXPECT_EQ(pool.usage().used_bytes, 0);
      EXPECT_EQ(engine.n_running() + engine.n_waiting(), 0);
    };
    for (const int position : {2, 20, 149}) {
      run(OverflowingAt(150, position));
      ExpectFailed(outcome, {});
    }
    run(OverflowingWhileDecoding(140));
    ExpectFailed(outcome, {kOverflowing});
    run(sound);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens, expected.tokens);
    EXPECT_EQ(outcome.kv_bytes.total(), expected.kv_bytes.total());
  }
}

TEST_P(FailureTest, FifteenOfSixteenGenerateWhatTheyDoWithoutTheOneThatFails) {
  std::vector<Request> sound;
  for (int i = 0; i < 15; ++i) sound.push_back(Sound(5 + 13 * i, i));
  // Holds a few of them at a time, so that they give way to each other.
  const int64_t tight = 4 * PeakSequenceBytes(model_->layout(), 300, 512, 240);
  for (const bool is_in_prompt : {true, false}) {
    const int64_t budget = is_in_prompt ? kPlenty : tight;
    Status status;
    const std::vector<RequestOutcome> expected = RunAll(sound, budget, {}, &status);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<Request> requests = sound;
    requests.insert(requests.begin() + 7,
                    is_in_prompt ? OverflowingAt(110, 50) : OverflowingWhileDecoding(110));
    std::vector<RequestOutcome> outcomes = RunAll(requests, budget, {}, &status);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    using Tokens = std::vector<int32_t>;
    ExpectFailed(outcomes[7], is_in_prompt ? Tokens() : Tokens{kOverflowing});
    outcomes.erase(outcomes.begin() + 7);
    for (size_t i = 0; i < sound.size(); ++i) {
      EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
      EXPECT_EQ(outcomes[i].finish_reason, FinishReason::kLength);
      EXPECT_EQ(outcomes[i].tokens, expected[i].tokens) << i;
    }
  }
}

TEST_P(FailureTest, AllMayFailInOneStep) {
  Status status;
  const std::vector<Request> requests = {OverflowingAt(100, 9), OverflowingAt(20, 9),
                                         OverflowingAt(140, 100)};
  for (const RequestOutcome& o : RunAll(requests, kPlenty, {}, &status)) ExpectFailed(o, {});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(
    Caches, FailureTest,
    ::testing::Values(FailureCase{"None", "none"}, FailureCase{"F32None", "none", DType::kF32},
                      FailureCase{"Kivi2", "kivi(bits=2)"},
                      FailureCase{"F32Kivi2", "kivi(bits=2)", DType::kF32},
                      FailureCase{"Int8", "int8"}, FailureCase{"Gear", "gear(bits=4,run=64)"},
                      FailureCase{"Kvquant", "kvquant(bits=4,run=64)"},
                      FailureCase{"H2o", "h2o(keep=0.5)"}, FailureCase{"Pool", "pool(n=3)"},
                      FailureCase{"TovaKivi", "tova(budget=200)+kivi(bits=4)"},
                      FailureCase{"Lathe", "lathe(ratio=4,open=8,run=64)"}),
    [](const auto& failure) { return failure.param.name; });

// Runs of three sequences end in one step; the rows of one are spoilt behind the model's back.
class SealFailureTest : public FailureTest {
 protected:
  static constexpr int kTokens = 4 + 128;  // sinks and two blocks, each of which is a run
  struct Run {
    std::vector<Status> failures;
    std::vector<std::vector<float>> logits;
    std::vector<int64_t> n_bytes;
  };

  // The second block of a head is spoilt before the last token is there; spoilt < 0: none.
  Run RunThree(int spoilt, int layer_idx) {
    HostPool pool(kPlenty);
    std::vector<std::unique_ptr<SequenceCache>> caches;
    std::vector<std::vector<int32_t>> ids;
    for (int i = 0; i < 3; ++i) {
      caches.push_back(std::make_unique<SequenceCache>(&model_->layout(), &pool));
      caches[i]->set_n_prompt(5);
      ids.push_back(Sound(kTokens, 90 + i).prompt);
    }
    Run run;
    for (int at = 0; at < kTokens;) {
      const int n = static_cast<int>(std::min<int64_t>(
          {caches[0]->max_step(), kTokens - at, at + 1 == kTokens ? 1 : kTokens - 1 - at}));
      if (at + 1 == kTokens && spoilt >= 0) {
        const int64_t n_bytes =
            BlockObjectBytes(model_->layout(), model_->layout().shape(layer_idx, 1));
        pool.device().Fill({caches[spoilt]->head(layer_idx, 1).blocks()[1]}, std::byte{0xff},
                           n_bytes);
      }
      std::vector<SequenceStep> steps;
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(caches[i]->Extend(n).ok());
        steps.push_back({caches[i].get(), std::span(ids[i]).subspan(at, n)});
      }
      EXPECT_TRUE(model_->ForwardEach(steps, &run.failures).ok());
      at += n;
    }
    for (int i = 0; i < 3; ++i) {
      const std::span<const float> logits = model_->logits(i);
      run.logits.emplace_back(logits.begin(), logits.end());
      run.n_bytes.push_back(caches[i]->bytes().total());
      EXPECT_EQ(caches[i]->has_failed(), i == spoilt);
      // A cache that failed takes no more, and says so; the others do.
      EXPECT_EQ(caches[i]->Extend(1).code(), i == spoilt ? StatusCode::kDataLoss : StatusCode::kOk);
    }
    caches.clear();
    EXPECT_EQ(pool.usage().used_bytes, 0);
    return run;
  }
};

TEST_P(SealFailureTest, TheOthersOfTheStepAreSealedInAllLayers) {
  const Run sound = RunThree(-1, 0);
  for (const Status& status : sound.failures) EXPECT_TRUE(status.ok()) << status;
  for (const int layer_idx : {0, 1}) {
    for (const int spoilt : {0, 1, 2}) {
      const Run run = RunThree(spoilt, layer_idx);
      for (int i = 0; i < 3; ++i) {
        if (i == spoilt) {
          EXPECT_EQ(run.failures[i].code(), StatusCode::kDataLoss);
          const std::string layer = "layer " + std::to_string(layer_idx);
          EXPECT_NE(MessageOf(run.failures[i]).find(layer), std::string::npos) << run.failures[i];
          continue;
        }
        EXPECT_TRUE(run.failures[i].ok()) << run.failures[i];
        EXPECT_EQ(run.logits[i], sound.logits[i]);
        EXPECT_EQ(run.n_bytes[i], sound.n_bytes[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, SealFailureTest,
                         ::testing::Values(FailureCase{"Kivi", "kivi(bits=2,run=64)"},
                                           FailureCase{"Gear", "gear(bits=4,run=64)"}),
                         [](const auto& failure) { return failure.param.name; });

// The pool is another's as well, who takes what a request was promised.
class SharedPoolTest : public FailureTest {};

TEST_P(SharedPoolTest, ARequestThatFindsNoRoomEndsAndTheNextFindsIt) {
  HostPool pool(SequenceBytes(model_->layout(), 300));
  Engine engine({model_.get()}, &pool, {});
  SequenceCache other(&model_->layout(), &pool);
  RequestOutcome outcome;
  const auto submit = [&] {
    const auto keep = [&](auto, const RequestOutcome& o) { outcome = o; };
    ASSERT_TRUE(engine.Submit(Sound(200, 3), nullptr, keep).ok());
  };
  submit();
  ASSERT_TRUE(other.Extend(200).ok());
  EXPECT_EQ(engine.RunUntilIdle().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kFailed);
  EXPECT_EQ(outcome.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(engine.n_running(), 0);
  other.Clear();
  submit();
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
}

INSTANTIATE_TEST_SUITE_P(Caches, SharedPoolTest, ::testing::Values(FailureCase{"None", "none"}),
                         [](const auto& failure) { return failure.param.name; });

}  // namespace
}  // namespace kvlathe
