// Requests with drafts generate what they would without: the same tokens with the same
// log-probabilities, bytes and sessions, whatever is drafted, with every cache that takes positions
// back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../sequence_cases.h"
#include "base/random.h"
#include "engine/drafts/draft_room.h"
#include "engine/engine.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/capacity.h"
#include "model/small_config.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::MakeCaseModel;
using testing::RandomTokens;
using testing::SequenceCase;

constexpr int64_t kPlenty = int64_t{256} << 20;
constexpr int kStepTokens = 64;

// Knows what will be generated and proposes some of it, and then other tokens.
class MisledDrafter : public Drafter {
 public:
  MisledDrafter(std::vector<int32_t> answer, uint64_t seed)
      : answer_(std::move(answer)), random_(seed) {}

  std::vector<int32_t> Propose(std::span<const int32_t> tokens, int64_t n_given,
                               int n_most) override {
    const int64_t n_generated = std::ssize(tokens) - n_given;
    const int64_t n_right = random_.Below(10), n = random_.Below(n_most + 1);
    std::vector<int32_t> draft;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = n_generated + i;
      const int32_t right = at < std::ssize(answer_) ? answer_[at] : 0;
      draft.push_back(i < n_right ? right : (right + 1) % kSmallVocabulary);
    }
    return draft;
  }

 private:
  std::vector<int32_t> answer_;
  Random random_;
};

// What came of a request.
struct Told {
  RequestOutcome outcome;
  std::vector<TokenLogprobs> logprobs;
  Session session;
};

class DraftedText : public ::testing::Test {
 protected:
  void Use(const SequenceCase& of) {
    model_ = MakeCaseModel(of, &threads_, SelectIsa().value());
    model_->set_deterministic(true);
    identity_ = {of.spec, "a model"};
  }

  // All at once; each ends at one of its stop_ids or where its callback says so.
  std::vector<Told> Run(const std::vector<Request>& requests, const EngineOptions& given,
                        std::vector<Session> sessions = {}, int64_t budget = kPlenty,
                        int32_t last_token = -1) {
    sessions.resize(requests.size());
    std::vector<Told> told(requests.size());
    EngineOptions options = given;
    options.max_batch_tokens = kStepTokens;
    Engine engine({model_.get()}, pool_ != nullptr ? pool_.get() : MakePool(budget), options);
    n_steps_ = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Submit(
          requests[i],
          [&, i](auto, const GeneratedToken& token) {
            if (token.logprobs != nullptr) told[i].logprobs.push_back(*token.logprobs);
            return token.id == last_token ? FinishReason::kStop : FinishReason::kNone;
          },
          [&, i](auto request_id, const RequestOutcome& o) {
            told[i].outcome = o;
            if (keeps_sessions_) told[i].session = engine.TakeSession(request_id);
          },
          std::move(sessions[i]));
      EXPECT_TRUE(id.ok()) << id.status();
    }
    while (engine.Step()) ++n_steps_;
    return told;
  }

  BlockPool* MakePool(int64_t budget) {
    pool_ = std::make_unique<HostPool>(budget);
    return pool_.get();
  }

  static std::vector<Request> Requests(const std::vector<int>& lengths, int max_tokens,
                                       float temperature) {
    std::vector<Request> requests;
    for (const int n : lengths) {
      Request r = {.prompt = RandomTokens(n, n), .max_tokens = max_tokens, .n_top_logprobs = 2};
      r.sampling.temperature = temperature;
      r.sampling.seed = n;
      requests.push_back(std::move(r));
    }
    return requests;
  }

  static std::vector<Request> WithDrafts(std::vector<Request> requests,
                                         const std::vector<Told>& expected, uint64_t seed) {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].drafter =
          std::make_shared<MisledDrafter>(expected[i].outcome.tokens, seed * 100 + i);
    }
    return requests;
  }

  std::string FileOf(const Session& session) const {
    const std::string path = folder_ / "session";
    const Status saved = SaveSession(session, identity_, path);
    EXPECT_TRUE(saved.ok()) << saved;
    return ReadTextFile(path).value_or("");
  }

  void ExpectSame(const std::vector<Told>& drafted, const std::vector<Told>& expected) const {
    for (size_t i = 0; i < expected.size(); ++i) {
      const Told &got = drafted[i], &want = expected[i];
      SCOPED_TRACE("request " + std::to_string(i));
      ASSERT_TRUE(got.outcome.status.ok()) << got.outcome.status;
      EXPECT_EQ(got.outcome.tokens, want.outcome.tokens);
      EXPECT_EQ(got.outcome.finish_reason, want.outcome.finish_reason);
      EXPECT_EQ(got.outcome.n_cached_tokens, want.outcome.n_cached_tokens);
      EXPECT_EQ(got.outcome.kv_bytes.total(), want.outcome.kv_bytes.total());
      EXPECT_EQ(got.session.tokens, want.session.tokens);
      ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
      for (size_t t = 0; t < want.logprobs.size(); ++t) {
        EXPECT_EQ(got.logprobs[t].chosen.token, want.logprobs[t].chosen.token);
        ASSERT_EQ(got.logprobs[t].chosen.logprob, want.logprobs[t].chosen.logprob) << t;
        ASSERT_EQ(got.logprobs[t].top.at(1).logprob, want.logprobs[t].top.at(1).logprob) << t;
      }
      if (want.session.cache == nullptr) continue;
      ASSERT_NE(got.session.cache, nullptr);
      EXPECT_TRUE(FileOf(got.session) == FileOf(want.session));
    }
  }

  static int64_t CountAccepted(const std::vector<Told>& told) {
    int64_t n = 0;
    for (const Told& t : told) n += t.outcome.n_accepted_tokens;
    return n;
  }
  static int64_t CountRefused(const std::vector<Told>& told) {
    int64_t n = -CountAccepted(told);
    for (const Told& t : told) n += t.outcome.n_drafted_tokens;
    return n;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
  std::unique_ptr<HostPool> pool_;
  SequenceIdentity identity_;
  ScratchFolder folder_;
  int n_steps_ = 0;
  bool keeps_sessions_ = true;
};

class EveryCache : public DraftedText, public ::testing::WithParamInterface<SequenceCase> {
 protected:
  void SetUp() override { Use(GetParam()); }
};

// Then the sessions go on: what a refused token had left behind would be read there.
TEST_P(EveryCache, GivesTheSameTokensBytesAndSessions) {
  const std::vector<Request> requests = Requests({3, 61, 150}, 90, GetParam().name == "Kivi");
  if (!WhyNothingIsDrafted(model_->layout()).empty()) {
    std::vector<Request> drafted = requests;
    drafted[0].drafter = MakeDrafter(DraftOptions());
    HostPool pool(kPlenty);
    Engine engine({model_.get()}, &pool, {});
    const Status status = engine.Submit(drafted[0], nullptr, nullptr).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return;
  }
  std::vector<Told> expected = Run(requests, {});
  const int n_steps_alone = n_steps_;
  std::vector<Told> drafted = Run(WithDrafts(requests, expected, 1), {});
  ExpectSame(drafted, expected);
  EXPECT_GT(CountAccepted(drafted), 60);
  // Where every fourth position ends a prune interval, drafts are short.
  EXPECT_GT(CountRefused(drafted), GetParam().name == "BasisDms" ? 0 : 60);
  EXPECT_LT(n_steps_, n_steps_alone);

  std::vector<Request> further = Requests({20, 40, 1}, 40, 0.8);
  const auto go_on = [&](std::vector<Told>* from, const std::vector<Request>& asked) {
    std::vector<Session> sessions;
    for (Told& t : *from) sessions.push_back(std::move(t.session));
    return Run(asked, {}, std::move(sessions));
  };
  const std::vector<Told> expected_further = go_on(&expected, further);
  const std::vector<Told> drafted_further =
      go_on(&drafted, WithDrafts(further, expected_further, 2));
  ExpectSame(drafted_further, expected_further);
}

INSTANTIATE_TEST_SUITE_P(Caches, EveryCache, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& info) { return info.param.name; });

// Blocks leave a window in the step whose first position does not see them any more.
TEST_F(DraftedText, HoldsTheBytesOfAWindowWhereverItEnds) {
  Use({"WindowInt8", "window(size=30)+int8(run=64)"});
  for (int n = 30; n < 50; n += 2) {
    const std::vector<Request> requests = Requests({61}, n, 0);
    const std::vector<Told> expected = Run(requests, {});
    ExpectSame(Run(WithDrafts(requests, expected, n), {}), expected);
  }
}

class FewCaches : public EveryCache {};

// Every one of these reads or counts tokens one by one.
TEST_P(FewCaches, KeepPenaltiesBiasesAndSampling) {
  std::vector<Request> requests = Requests({9, 70}, 60, 1);
  for (Request& r : requests) {
    r.sampling.repetition_penalty = 1.3F;
    r.sampling.repeat_last_n = 20;
    r.sampling.presence_penalty = 0.2F;
    r.sampling.frequency_penalty = 0.1F;
    r.sampling.logit_bias = {{5, 1.5F}, {6, -3.0F}};
    r.sampling.top_p = 0.9F;
    r.sampling.top_k = 40;
  }
  const std::vector<Told> expected = Run(requests, {});
  const std::vector<Told> drafted = Run(WithDrafts(requests, expected, 3), {});
  ExpectSame(drafted, expected);
  EXPECT_GT(CountAccepted(drafted), 20);
}

// Lets tokens pass that leave the sum of all by seven at 0, 1 or 2.
class SumConstraint : public TokenConstraint {
 public:
  void Mask(std::span<float> logits) override {
    for (int64_t id = 0; id < std::ssize(logits); ++id) {
      if ((sum_ + id) % 7 > 2) logits[id] = -std::numeric_limits<float>::infinity();
    }
  }
  Status Accept(int32_t token) override {
    sum_ += token;
    EXPECT_LE(sum_ % 7, 2);
    ++n_accepted_;
    return OkStatus();
  }
  bool is_complete() const override { return n_accepted_ == 47; }

 private:
  int64_t sum_ = 0;
  int n_accepted_ = 0;
};

TEST_P(FewCaches, KeepConstraints) {
  const auto constrained = [](std::vector<Request> requests) {
    for (Request& r : requests) r.constraint = std::make_shared<SumConstraint>();
    return requests;
  };
  const std::vector<Request> requests = Requests({9, 70}, 60, 0.7F);
  const std::vector<Told> expected = Run(constrained(requests), {});
  EXPECT_EQ(expected[0].outcome.tokens.size(), 47u);
  const std::vector<Told> drafted = Run(constrained(WithDrafts(requests, expected, 4)), {});
  ExpectSame(drafted, expected);
  EXPECT_GT(CountAccepted(drafted), 20);
}

// Within a draft too: what was right behind the end is taken back.
TEST_P(FewCaches, EndWhereTheyWouldEnd) {
  const std::vector<Request> requests = Requests({9, 70}, 60, 1);
  const std::vector<Told> whole = Run(requests, {});
  for (const int at : {0, 1, 7, 23, 40}) {
    SCOPED_TRACE(at);
    const int32_t last = whole[0].outcome.tokens[at];
    std::vector<Request> with_stops = requests;
    for (Request& r : with_stops) r.stop_ids = {last};
    const std::vector<Told> stopped = Run(with_stops, {});
    EXPECT_LE(std::ssize(stopped[0].outcome.tokens), at);
    ExpectSame(Run(WithDrafts(with_stops, whole, 5 + at), {}), stopped);
    const std::vector<Told> ended = Run(requests, {}, {}, kPlenty, last);
    EXPECT_EQ(ended[0].outcome.tokens.back(), last);
    ExpectSame(Run(WithDrafts(requests, whole, 6 + at), {}, {}, kPlenty, last), ended);
  }
}

TEST_P(FewCaches, GoThroughPreemptionAndTheStoreOfPrefixes) {
  std::vector<Request> requests = Requests({60, 61, 62, 63}, 90, 0);
  keeps_sessions_ = false;  // their caches would take the room of others
  const std::vector<Told> expected = Run(requests, {});
  int64_t most = 0;
  for (const Request& r : requests) {
    const int64_t n_prompt = std::ssize(r.prompt);
    most = std::max(
        most, PeakSequenceBytes(model_->layout(), n_prompt + r.max_tokens, kStepTokens, n_prompt));
  }
  for (const EngineOptions& options : {EngineOptions(), EngineOptions{.prefix_bytes = most / 2}}) {
    pool_.reset();
    const std::vector<Told> drafted =
        Run(WithDrafts(requests, expected, 7), options, {}, most * 7 / 5);
    int n_preemptions = 0;
    for (size_t i = 0; i < drafted.size(); ++i) {
      EXPECT_EQ(drafted[i].outcome.tokens, expected[i].outcome.tokens);
      EXPECT_EQ(drafted[i].outcome.kv_bytes.total(), expected[i].outcome.kv_bytes.total());
      n_preemptions += drafted[i].outcome.n_preemptions;
    }
    if (!model_->layout().seal.has_value()) {
      EXPECT_GT(n_preemptions, 0);
    }
    EXPECT_GT(CountAccepted(drafted), 60);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, FewCaches,
    ::testing::Values(SequenceCase{"None", "none"},
                      SequenceCase{"Lathe", "lathe(ratio=4,scales=static,open=8,run=64)",
                                   testing::CaseBasis::kSplit}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvlathe
