// Requests with a rate of their own on one model, against models that were made with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

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

using ::testing::HasSubstr;

constexpr int kHeadDim = 64, kHeads = 4;  // layers times KV heads
constexpr int64_t kPlenty = 64 << 20;

// What is stored at a rate: one step of 16 for each tenth, of one head and pair after the other.
StatusOr<std::vector<HeadRanks>> RanksAt(double rate) {
  if (!(rate >= 0 && rate < 1)) {
    return Error(StatusCode::kInvalidArgument, "rate={}: the removed share lies in [0, 1)", rate);
  }
  std::vector<HeadRanks> ranks(kHeads, {kHeadDim, kHeadDim});
  for (int step = 0; step < static_cast<int>(std::lround(10 * rate)); ++step) {
    HeadRanks& head = ranks[step % kHeads];
    (step / kHeads % 2 == 0 ? head.rank_v : head.rank_k) -= 16;
  }
  return ranks;
}

class RatesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(WideConfig(kHeadDim), DType::kBf16, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    Random random(17);
    for (std::vector<float>& map : maps_) {
      map.resize(kHeadDim * kHeadDim);
      for (float& x : map) x = static_cast<float>(random.Normal() / std::sqrt(kHeadDim));
    }
    resident_ = MakeModel(*RanksAt(0), *RanksAt(0.3));
  }

  ModelBasis Cut(const std::vector<HeadRanks>& ranks) const {
    ModelBasis basis{2, 2, kHeadDim, {}};
    const auto columns = [](const std::vector<float>& map, int n) {
      std::vector<float> cut;
      for (int i = 0; i < kHeadDim; ++i) {
        cut.insert(cut.end(), map.begin() + i * kHeadDim, map.begin() + i * kHeadDim + n);
      }
      return cut;
    };
    for (const HeadRanks& r : ranks) {
      HeadBasis& head = basis.heads.emplace_back();
      head.rank_k = r.rank_k;
      head.rank_v = r.rank_v;
      head.query_basis = columns(maps_[0], r.rank_k);
      head.key_basis = columns(maps_[1], r.rank_k);
      head.value_basis = columns(maps_[2], r.rank_v);
      head.output_basis.assign(maps_[3].begin(), maps_[3].begin() + r.rank_v * kHeadDim);
    }
    return basis;
  }
  std::unique_ptr<Model> MakeModel(const std::vector<HeadRanks>& ranks,
                                   const std::vector<HeadRanks>& offered = {}) {
    PlanParts parts = PartsOf(*Spec::Parse(GetParam()));
    parts.basis = Cut(ranks);
    parts.n_sink = 4;
    if (!offered.empty()) {
      parts.allocation = RankAllocation{.ranks = offered};
      parts.ranks_at = RanksAt;
    }
    auto model = CreateModel(weights_, std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    (*model)->set_deterministic(true);
    return *std::move(model);
  }
  static Request MakeRequest(int n_prompt, std::optional<double> rate) {
    Request r;
    Random random(n_prompt);
    for (int i = 0; i < n_prompt; ++i) r.prompt.push_back(random.Below(128));
    r.max_tokens = 80;
    r.rate = rate;
    return r;
  }
  static std::vector<Request> MixedRequests() {
    return {MakeRequest(70, 0.0), MakeRequest(130, 0.6), MakeRequest(20, std::nullopt),
            MakeRequest(200, 0.2), MakeRequest(90, 0.6)};
  }
  std::vector<Trace> Run(Model* model, const std::vector<Request>& requests, int64_t budget,
                         int max_batch_tokens = 512) {
    return RunRequests(model, requests, budget, {.max_batch_tokens = max_batch_tokens});
  }
  // Of each request alone, on a model made with the ranks of its rate.
  std::vector<Trace> RunFixed(const std::vector<Request>& requests) {
    std::vector<Trace> traces;
    for (Request r : requests) {
      const std::unique_ptr<Model> fixed = MakeModel(*RanksAt(r.rate.value_or(0.3)));
      r.rate.reset();
      traces.push_back(Run(fixed.get(), {r}, kPlenty).front());
    }
    return traces;
  }

  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::vector<float> maps_[4];
  std::unique_ptr<Model> resident_;
};

TEST_P(RatesTest, RequestsOfOneBatchHaveTheBitsAndBytesOfModelsOfTheirRates) {
  const std::vector<Request> requests = MixedRequests();
  const std::vector<Trace> expected = RunFixed(requests);
  for (const int max_batch_tokens : {512, 33}) {
    const std::vector<Trace> traces = Run(resident_.get(), requests, kPlenty, max_batch_tokens);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(traces[i] == expected[i]) << max_batch_tokens << ", request " << i;
    }
  }
  // More is removed, less is stored.
  EXPECT_LT(expected[1].outcome.kv_bytes.total() * 70, expected[0].outcome.kv_bytes.total() * 130);
}

TEST_P(RatesTest, SoHaveThoseThatGiveWay) {
  const std::vector<Request> requests = MixedRequests();
  const std::vector<Trace> expected = RunFixed(requests);
  int64_t budget = 0;  // holds each of them alone
  for (const Request& r : requests) {
    const CacheLayout& layout =
        r.rate.has_value() ? **resident_->LayoutAt(*r.rate) : resident_->layout();
    const int64_t n_prompt = std::ssize(r.prompt);
    budget = std::max(budget, PeakSequenceBytes(layout, n_prompt + 79, 512, n_prompt));
  }
  // Without retention sequences grow until the newest is stopped; with it that depends on how many
  // prompts are read at the same time.
  const bool grows = !RetentionPlanOf(*Spec::Parse(GetParam())).has_value();
  const int64_t most = grows ? 4 * budget : budget + 1;
  int n_preemptions = 0;
  for (; n_preemptions == 0 && budget < most; budget += budget / 16) {
    const std::vector<Trace> traces = Run(resident_.get(), requests, budget);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(traces[i] == expected[i]) << "request " << i;
      n_preemptions += traces[i].outcome.n_preemptions;
    }
  }
  EXPECT_TRUE(n_preemptions > 0 || !grows);
}

TEST_P(RatesTest, ASessionGoesOnAtTheRateOfItsCache) {
  const Request whole = MakeRequest(70, 0.6);
  const Trace expected = Run(resident_.get(), {whole}, kPlenty).front();
  for (const std::optional<double> rate : {std::optional<double>(), std::optional(0.6)}) {
    HostPool pool(kPlenty);
    Engine engine({resident_.get()}, &pool, {});
    Request first = whole;
    first.max_tokens = 30;
    Session session;
    std::vector<int32_t> tokens;
    const auto keep = [&](Engine::RequestId id, const RequestOutcome& o) {
      tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
      session = engine.TakeSession(id);
    };
    ASSERT_TRUE(engine.Submit(first, nullptr, keep).ok());
    ASSERT_TRUE(engine.RunUntilIdle().ok());
    Request further;
    further.max_tokens = 50;
    further.rate = 0.2;
    const auto refused = engine.Submit(further, nullptr, keep, std::move(session));
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("another rate"));

    tokens.clear();
    ASSERT_TRUE(engine.Submit(first, nullptr, keep).ok());
    ASSERT_TRUE(engine.RunUntilIdle().ok());
    further.rate = rate;
    ASSERT_TRUE(engine.Submit(further, nullptr, keep, std::move(session)).ok());
    ASSERT_TRUE(engine.RunUntilIdle().ok());
    EXPECT_EQ(tokens, expected.outcome.tokens);
    session.cache.reset();
  }
}

TEST_P(RatesTest, RefusesWhatItDoesNotOffer) {
  HostPool pool(kPlenty);
  Engine engine({resident_.get()}, &pool, {});
  for (const double rate : {-0.1, 1.0, 1.5, std::nan("")}) {
    const auto id = engine.Submit(MakeRequest(3, rate), nullptr, nullptr);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument) << rate;
  }
  const std::unique_ptr<Model> fixed = MakeModel(*RanksAt(0.3));
  Engine other({fixed.get()}, &pool, {});
  const auto id = other.Submit(MakeRequest(3, 0.3), nullptr, nullptr);
  EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(id.status().message()), HasSubstr("resident=full"));
}

INSTANTIATE_TEST_SUITE_P(Caches, RatesTest,
                         ::testing::Values("none", "kivi(bits=4,run=64)", "kcvt(bits=4,run=64)",
                                           "gear(bits=4,run=128,share=0.1)", "h2o(keep=0.5)",
                                           "h2o(keep=0.5,score=exact)",
                                           "keyformer(keep=0.5,score=exact)+kivi(bits=4)",
                                           "tova(keep=0.5)+kivi(bits=4)", "pool(n=3)"),
                         [](const auto& test) {
                           std::string name;
                           for (const char c : std::string_view(test.param)) {
                             if (std::isalnum(static_cast<unsigned char>(c))) name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace kvlathe
