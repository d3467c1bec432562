// Generation that stops, goes through a file and goes on gives what it would have given, bit for
// bit.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <string>

#include "base/random.h"
#include "engine/engine.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct ModelCase {
  const char* name;
  DType dtype;
  const char* spec;  // of a basis only that it has one
  int window = 0;
};

// What one request gave: its tokens, and the logits behind each.
struct Generated {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  RequestOutcome outcome;
  Session session;
};

class ResumedSession : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    ModelConfig c = SmallConfig();
    c.max_seq_len = 1024;
    c.attention.kinds[0].window = GetParam().window;
    auto weights = ModelWeights::Load(c, GetParam().dtype, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    const StatusOr<Spec> spec = Spec::Parse(GetParam().spec);
    ASSERT_TRUE(spec.ok()) << spec.status();
    identity_ = {spec->ToString(), "a model"};
    const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.5, 9);
    auto model = CreateModel(*std::move(weights),
                             PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  static Request MakeRequest(int n_prompt, int max_tokens, uint64_t seed) {
    Request r;
    Random random(seed);
    for (int i = 0; i < n_prompt; ++i) {
      r.prompt.push_back(static_cast<int32_t>(random.Below(kSmallVocabulary)));
    }
    r.max_tokens = max_tokens;
    return r;
  }

  Generated Run(Request request, BlockPool* pool, Session session = {}) {
    Generated g;
    Engine engine({model_.get()}, pool, {});
    const auto id = engine.Submit(
        std::move(request),
        [&](auto, const GeneratedToken& token) {
          const std::span<const float> logits = model_->logits(0);
          g.tokens.push_back(token.id);
          g.logits.emplace_back(logits.begin(), logits.end());
          return FinishReason::kNone;
        },
        [&](auto request_id, const RequestOutcome& o) {
          g.outcome = o;
          g.session = engine.TakeSession(request_id);
        },
        std::move(session));
    EXPECT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    return g;
  }

  // Through a file, into a pool of its own.
  Session Stored(const Session& session, BlockPool* pool) {
    const std::string path = folder_ / "session";
    const Status saved = SaveSession(session, identity_, path);
    EXPECT_TRUE(saved.ok()) << saved;
    auto loaded = LoadSession(path, {identity_, &model_->layout(), 1024}, kSmallVocabulary, pool);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }

  // n_first tokens, the file, and the rest against all at once.
  void ExpectGoesOn(const Request& whole, int n_first) {
    HostPool pool(kNoLimit), second_pool(kNoLimit);
    const Generated at_once = Run(whole, &pool);
    Request request = whole;
    request.max_tokens = n_first;
    const Generated first = Run(request, &pool);
    request.max_tokens = whole.max_tokens - n_first;
    request.prompt.clear();
    const Generated second = Run(request, &second_pool, Stored(first.session, &second_pool));
    std::vector<int32_t> tokens = first.tokens;
    tokens.insert(tokens.end(), second.tokens.begin(), second.tokens.end());
    EXPECT_EQ(tokens, at_once.tokens);
    for (size_t i = 0; i < second.logits.size(); ++i) {
      ASSERT_TRUE(second.logits[i] == at_once.logits[n_first + i]) << "token " << n_first + i;
    }
    EXPECT_EQ(second.session.tokens, at_once.session.tokens);
    EXPECT_EQ(second.session.turn_ends, at_once.session.turn_ends);
    EXPECT_EQ(SessionState(second.session), SessionState(at_once.session));
    EXPECT_EQ(second.outcome.n_cached_tokens, at_once.outcome.n_cached_tokens);
    EXPECT_EQ(second.outcome.kv_bytes.total(), at_once.outcome.kv_bytes.total());
  }

  ScratchFolder folder_;
  SequenceIdentity identity_;
  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(ResumedSession, GoesOnGreedily) {
  for (const int n_prompt : {1, 60, 130}) ExpectGoesOn(MakeRequest(n_prompt, 80, n_prompt), 30);
  ExpectGoesOn(MakeRequest(20, 10, 4), 1);
}

TEST_P(ResumedSession, GoesOnWithTheSameDrawsAndPenalties) {
  Request request = MakeRequest(50, 60, 8);
  request.sampling = {.temperature = 0.8f, .seed = 7};
  ExpectGoesOn(request, 20);
  request.sampling = {.temperature = 1.5f,
                      .top_k = 50,
                      .top_p = 0.95f,
                      .min_p = 0.01f,
                      .repetition_penalty = 1.3f,
                      .repeat_last_n = 16,
                      .presence_penalty = 0.3f,
                      .frequency_penalty = 0.2f,
                      .logit_bias = {{5, 2.f}, {6, -100.f}},
                      .seed = 11};
  ExpectGoesOn(request, 20);
  request.sampling.repeat_last_n = -1;
  ExpectGoesOn(request, 35);
}

// A second prompt behind a restored sequence gives what it gives behind the one that never left
// memory.
TEST_P(ResumedSession, TakesAnotherPrompt) {
  HostPool pool(kNoLimit), second_pool(kNoLimit);
  Generated first = Run(MakeRequest(40, 25, 1), &pool);
  Session stored = Stored(first.session, &second_pool);
  const Request more = MakeRequest(90, 20, 2);
  const Generated kept = Run(more, &pool, std::move(first.session));
  const Generated restored = Run(more, &second_pool, std::move(stored));
  EXPECT_EQ(restored.tokens, kept.tokens);
  EXPECT_TRUE(restored.logits == kept.logits);
  EXPECT_EQ(restored.session.turn_ends, (std::vector<int>{40, 65, 155, 175}));
  EXPECT_EQ(restored.outcome.n_cached_tokens, 174);
}

// Computing everything again, as after a preemption, is what an engine does without a cache. With
// set_deterministic it gives the same bits.
TEST_P(ResumedSession, ReplaysItsTurnsToTheSameBits) {
  model_->set_deterministic(true);
  HostPool pool(kNoLimit);
  const Generated first = Run(MakeRequest(70, 30, 1), &pool);
  const Generated second = Run(MakeRequest(33, 10, 2), &pool, Stored(first.session, &pool));
  Request request;
  request.max_tokens = 20;
  const Generated kept = Run(request, &pool, Stored(second.session, &pool));
  Session forgotten = Stored(second.session, &pool);
  forgotten.cache.reset();
  const Generated replayed = Run(request, &pool, std::move(forgotten));
  EXPECT_EQ(replayed.tokens, kept.tokens);
  EXPECT_TRUE(replayed.logits == kept.logits);
}

TEST_P(ResumedSession, EndsWithTheEndOfSequence) {
  HostPool pool(kNoLimit);
  Request request = MakeRequest(30, 12, 5);
  const Generated whole = Run(request, &pool);
  request.stop_ids = {whole.tokens[4]};
  Generated stopped = Run(request, &pool);
  ASSERT_EQ(stopped.outcome.finish_reason, FinishReason::kStop);
  const size_t n_tokens = 30 + stopped.outcome.tokens.size();
  EXPECT_EQ(stopped.session.tokens.size(), n_tokens);
  EXPECT_EQ(stopped.session.cache->n_tokens(), static_cast<int>(n_tokens));
  Session stored = Stored(stopped.session, &pool);
  Engine engine({model_.get()}, &pool, {});
  EXPECT_EQ(engine.Submit({}, nullptr, nullptr, std::move(stored)).status().code(),
            StatusCode::kInvalidArgument);
  const Generated further = Run(MakeRequest(1, 5, 6), &pool, Stored(stopped.session, &pool));
  EXPECT_EQ(further.tokens.size(), 5u);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ResumedSession,
    testing::Values(ModelCase{"bf16", DType::kBf16, "none"}, ModelCase{"f32", DType::kF32, "none"},
                    ModelCase{"basis", DType::kBf16, "fdc(rate=0.5)"},
                    ModelCase{"window", DType::kBf16, "none", 48},
                    ModelCase{"basis_window", DType::kF32, "fdc(rate=0.5)", 48},
                    ModelCase{"kivi", DType::kBf16, "kivi(bits=2,run=64)"},
                    ModelCase{"gear", DType::kBf16, "fdc(rate=0.5)+gear(bits=4,run=128,share=0.1)"},
                    ModelCase{"gear_window", DType::kF32, "gear(bits=4,run=64,share=0.1)", 100},
                    ModelCase{"h2o", DType::kBf16, "fdc(rate=0.5)+h2o(keep=0.5)"},
                    ModelCase{"exact", DType::kBf16, "fdc(rate=0.5)+h2o(keep=0.5,score=exact)"},
                    ModelCase{"exact_kivi", DType::kF32,
                              "fdc(rate=0.5)+tova(budget=60,score=exact)+kivi(bits=4)"}),
    [](const auto& test) { return std::string(test.param.name); });

// Sessions that wait hold memory; it is taken back before anything that runs is preempted, and
// everything finishes.
class WaitingSessions : public ResumedSession {};

TEST_P(WaitingSessions, GiveTheirCachesUpWhenThePoolIsFull) {
  HostPool plenty(kNoLimit);
  std::vector<Generated> firsts;
  for (int i = 0; i < 3; ++i) firsts.push_back(Run(MakeRequest(150, 5, i), &plenty));
  HostPool pool(2 * SequenceBytes(model_->layout(), {400}));
  Engine engine({model_.get()}, &pool, {});
  std::vector<RequestOutcome> outcomes(4);
  const auto finish = [&](int i) {
    return [&, i](auto, const RequestOutcome& o) { outcomes[i] = o; };
  };
  ASSERT_TRUE(engine.Submit(MakeRequest(200, 200, 9), nullptr, finish(3)).ok());
  Request request;
  request.max_tokens = 200;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine.Submit(request, nullptr, finish(i), Stored(firsts[i].session, &pool)).ok());
  }
  ASSERT_TRUE(engine.RunUntilIdle().ok());
  int n_preemptions = 0;
  for (const RequestOutcome& o : outcomes) {
    EXPECT_EQ(o.tokens.size(), 200u);
    n_preemptions += o.n_preemptions;
  }
  EXPECT_GE(n_preemptions, 1);
  EXPECT_EQ(outcomes[3].n_preemptions, 0);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, WaitingSessions,
                         testing::Values(ModelCase{"f32", DType::kF32, "none"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvlathe
