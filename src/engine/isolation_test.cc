// One request's trouble is its own: beside one whose rows hold NaN, one that is cancelled by
// another thread and one that does not fit, all others finish with the tokens that they have alone,
// and nothing is left in the pool. KVLATHE_ISOLATION_ROUNDS: rounds of each cache, 3 unless set.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kOrdinary = 30;
// Its values are infinite in the first layer, so that its rows of the next are NaN.
constexpr int32_t kNanToken = 77;
constexpr int kMostPrompt = 90, kMostTokens = 20;
constexpr int kMostSteps = 250;  // tokens of the request that is cancelled

struct CacheCase {
  const char* name;
  const char* spec;
};
void PrintTo(const CacheCase& c, std::ostream* out) { *out << c.name; }

int Rounds() {
  const char* const rounds = std::getenv("KVLATHE_ISOLATION_ROUNDS");
  return rounds == nullptr ? 3 : std::atoi(rounds);
}

// Counts steps for the thread that waits for one.
class StepCounter : public EngineObserver {
 public:
  void OnStepEnded(const StepWork&, const EngineLoad&, double, const Status&) override {
    ++n_steps;
  }
  std::atomic<int> n_steps = 0;
};

class IsolationTest : public ::testing::TestWithParam<CacheCase> {
 protected:
  struct Round {
    std::vector<RequestOutcome> ordinary{kOrdinary};
    RequestOutcome nan, cancelled;
    Status refused;
    int n_finished = 0;
  };

  void SetUp() override {
    ModelConfig c = SmallConfig(/*head_dim=*/32);
    c.max_seq_len = 32768;
    auto weights =
        ModelWeights::Load(c, DType::kBf16, std::make_unique<OverflowingSource>(3, kNanToken),
                           MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const Spec spec = *Spec::Parse(GetParam().spec);
    const ModelBasis basis = HalfRankBasis(c, spec);
    auto model = CreateModel(*std::move(weights),
                             PartsOf(spec, FactsOf(spec.sealing()).splits_bits ? &basis : nullptr));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    model_->set_deterministic(true);
    for (int i = 0; i < kOrdinary; ++i) {
      requests_.push_back(Ordinary(1 + (i * 29) % kMostPrompt, kMostTokens - i % 5, i));
      alone_.push_back(TokensAlone(requests_.back()));
    }
  }

  // Neither holds nor generates the token without numbers.
  static Request Ordinary(int n_prompt, int max_tokens, uint64_t seed) {
    Request r;
    Random random(seed);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(kNanToken));
    r.max_tokens = max_tokens;
    r.sampling.logit_bias[kNanToken] = -100;
    return r;
  }
  // NaN comes in the prompt, or with the first token that it generates.
  static Request WithNan(Random* random) {
    Request r = Ordinary(1 + random->Below(kMostPrompt), kMostTokens, 500);
    if (random->Below(2) == 0) {
      r.prompt[random->Below(r.prompt.size())] = kNanToken;
    } else {
      r.sampling.logit_bias[kNanToken] = 100;
    }
    return r;
  }

  std::vector<int32_t> TokensAlone(const Request& request) {
    HostPool pool(int64_t{64} << 20);
    Engine engine({model_.get()}, &pool, {});
    std::vector<int32_t> tokens;
    const auto keep = [&](auto, const RequestOutcome& o) { tokens = o.tokens; };
    EXPECT_TRUE(engine.Submit(request, nullptr, keep).ok());
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(tokens.size(), static_cast<size_t>(request.max_tokens));
    return tokens;
  }

  Round Run(uint64_t seed);
  void Check(const Round& round, const std::string& what) const;

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
  std::vector<Request> requests_;
  std::vector<std::vector<int32_t>> alone_;
};

IsolationTest::Round IsolationTest::Run(uint64_t seed) {
  Random random(seed);
  // Most run at once, or a few while the others wait.
  const int n_fitting = seed % 2 == 0 ? 20 : 4;
  const int64_t budget =
      n_fitting * PeakSequenceBytes(model_->layout(), kMostPrompt + kMostTokens, 512, kMostPrompt);
  HostPool pool(budget);
  StepCounter counter;
  Engine engine({model_.get()}, &pool,
                {.max_batch_tokens = seed % 3 == 0 ? 48 : 512, .observer = &counter});
  Round round;
  std::vector<std::pair<const Request*, RequestOutcome*>> submissions;
  for (int i = 0; i < kOrdinary; ++i) submissions.emplace_back(&requests_[i], &round.ordinary[i]);
  const Request with_nan = WithNan(&random);
  const Request to_cancel = Ordinary(1 + random.Below(kMostPrompt), kMostSteps, 501);
  const Request too_large = Ordinary(30000, 2000, 502);
  submissions.emplace_back(&with_nan, &round.nan);
  submissions.emplace_back(&to_cancel, &round.cancelled);
  for (size_t i = submissions.size() - 1; i > 0; --i) {
    std::swap(submissions[i], submissions[random.Below(i + 1)]);
  }
  std::atomic<Engine::RequestId> cancelled_id = 0;
  std::atomic<bool> was_cancelled = false;
  const auto submit = [&](const Request& request, RequestOutcome* outcome) {
    const auto id = engine.Submit(request, nullptr, [&, outcome](auto, const RequestOutcome& o) {
      *outcome = o;
      ++round.n_finished;
    });
    ASSERT_TRUE(id.ok()) << id.status();
    if (&request == &to_cancel) cancelled_id = *id;
  };
  const int cancel_behind = random.Below(12);
  std::vector<std::thread> threads;
  for (int half : {0, 1}) {
    threads.emplace_back([&, half] {
      for (size_t i = half; i < submissions.size(); i += 2) {
        submit(*submissions[i].first, submissions[i].second);
      }
    });
  }
  threads.emplace_back(
      [&] { round.refused = engine.Submit(too_large, nullptr, nullptr).status(); });
  threads.emplace_back([&] {
    while (cancelled_id == 0 || counter.n_steps < cancel_behind) std::this_thread::yield();
    EXPECT_TRUE(engine.Cancel(cancelled_id));
    was_cancelled = true;
  });
  while (round.n_finished < kOrdinary + 2) {
    // Steps do not run ahead of a thread that the machine keeps waiting: the request has a token
    // to generate in each of kMostSteps.
    while (counter.n_steps >= kMostSteps - 50 && !was_cancelled) std::this_thread::yield();
    engine.Step();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(engine.Step());
  EXPECT_EQ(engine.n_running() + engine.n_waiting(), 0);
  const PoolUsage usage = pool.usage();
  EXPECT_EQ(usage.used_bytes, 0);
  for (const int64_t n_bytes : usage.used_by_kind) EXPECT_EQ(n_bytes, 0);
  return round;
}

void IsolationTest::Check(const Round& round, const std::string& what) const {
  EXPECT_EQ(round.nan.finish_reason, FinishReason::kFailed) << what;
  EXPECT_EQ(round.nan.status.code(), StatusCode::kDataLoss) << what << round.nan.status;
  EXPECT_EQ(round.cancelled.finish_reason, FinishReason::kCancelled) << what;
  EXPECT_EQ(round.cancelled.status.code(), StatusCode::kCancelled) << what;
  EXPECT_EQ(round.refused.code(), StatusCode::kResourceExhausted) << what << round.refused;
  for (int i = 0; i < kOrdinary; ++i) {
    EXPECT_TRUE(round.ordinary[i].status.ok()) << what << round.ordinary[i].status;
    EXPECT_EQ(round.ordinary[i].finish_reason, FinishReason::kLength) << what;
    EXPECT_EQ(round.ordinary[i].tokens, alone_[i]) << what << " request " << i;
  }
}

TEST_P(IsolationTest, ThreeEndWithTheirOwnErrorsAndThirtyFinish) {
  const int n_rounds = Rounds();
  ASSERT_GE(n_rounds, 2);  // of either budget
  for (int i = 0; i < n_rounds; ++i) {
    const Round round = Run(i);
    Check(round, "round " + std::to_string(i) + ": ");
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, IsolationTest,
    ::testing::Values(CacheCase{"None", "none"}, CacheCase{"Kivi", "kivi(bits=2,run=64,sink=4)"},
                      CacheCase{"LatheMapsJoint",
                                "lathe(ratio=4,keys=block,maps=joint,run=64,sink=4)"},
                      CacheCase{"Lathe", "lathe(ratio=4,open=8,run=64,sink=4)"},
                      CacheCase{"H2oGear", "h2o(keep=0.5,sink=4)+gear(bits=4,run=64)"}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace kvlathe
