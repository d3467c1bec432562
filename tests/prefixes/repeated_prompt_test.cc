// Prompts that are read again for votes (kvzip): what a request gives does not depend on how its
// steps are cut or who gives way, and a compressed prompt is asked many questions.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/small_model.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kPrompt = 200;
constexpr int64_t kPlenty = 64 << 20;

class RepeatedPrompt : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto weights =
        ModelWeights::Load(WideConfig(/*head_dim=*/32), DType::kBf16, MakeRandomSource(3),
                           MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    model_ = MakeSmallModel(*std::move(weights), GetParam());
  }

  static Request MakeRequest(std::vector<int32_t> prompt, int max_tokens) {
    Request r;
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens;
    return r;
  }
  // Tokens of the prompt of kPrompt that are read again; the model has no words, but later chunks
  // begin with the end of the one before.
  int64_t NumberRepeated() const {
    const int64_t chunk = model_->layout().retention->repeat.chunk;
    return kPrompt - 1 + (kPrompt - 2) / chunk * RepeatPlan::kCarried;
  }
  static std::vector<int32_t> Question(uint64_t seed) { return RandomPrompt(30, seed); }
  static std::vector<int32_t> Joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  Engine::FinishCallback Keep() {
    return [this](auto id, const RequestOutcome& o) { outcomes_[id] = o; };
  }
  // Runs a request to its end.
  RequestOutcome Run(Engine* engine, Request request, Session session = {}) {
    const auto id = engine->Submit(std::move(request), nullptr, Keep(), std::move(session));
    EXPECT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return outcomes_[*id];
  }
  // The answer to the document and the question where nothing gives way and nothing is stored.
  RequestOutcome RunAlone(const Request& request) {
    HostPool pool(kPlenty);
    Engine engine({model_.get()}, &pool, {});
    return Run(&engine, request);
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
  std::map<Engine::RequestId, RequestOutcome> outcomes_;
};

TEST_P(RepeatedPrompt, IsReadOnceMoreAndTakenBack) {
  const Request request = MakeRequest(RandomPrompt(kPrompt, 1), 20);
  const RequestOutcome alone = RunAlone(request);
  EXPECT_EQ(alone.n_repeated_tokens, NumberRepeated());
  EXPECT_EQ(alone.n_cached_tokens, kPrompt + 19);
  for (const int max_batch_tokens : {3, 64}) {
    HostPool pool(kPlenty);
    Engine engine({model_.get()}, &pool, {.max_batch_tokens = max_batch_tokens});
    const RequestOutcome outcome = Run(&engine, request);
    EXPECT_EQ(outcome.tokens, alone.tokens);
    EXPECT_EQ(outcome.n_repeated_tokens, NumberRepeated());
    EXPECT_EQ(outcome.kv_bytes.total(), alone.kv_bytes.total());
  }
  // A prompt of which all stays is read once.
  EXPECT_EQ(RunAlone(MakeRequest(RandomPrompt(8, 1), 2)).n_repeated_tokens, 0);
}

TEST_P(RepeatedPrompt, EndsWhereItIsCancelledOnTheWay) {
  HostPool pool(kPlenty);
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 20});
  Session left;
  const auto id = engine.Submit(MakeRequest(RandomPrompt(kPrompt, 1), 5), nullptr,
                                [&](auto request, const RequestOutcome& o) {
                                  outcomes_[request] = o;
                                  left = engine.TakeSession(request);
                                });
  ASSERT_TRUE(id.ok());
  for (int step = 0; step < 15; ++step) ASSERT_TRUE(engine.Step());  // ten to read it
  EXPECT_TRUE(engine.Cancel(*id));
  EXPECT_FALSE(engine.Step());
  EXPECT_EQ(outcomes_[*id].finish_reason, FinishReason::kCancelled);
  EXPECT_GT(outcomes_[*id].n_repeated_tokens, 0);
  EXPECT_LT(outcomes_[*id].n_repeated_tokens, NumberRepeated());
  EXPECT_EQ(left.cache, nullptr);  // votes of a part are not what a session goes on with
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

// Who gives way while its prompt is read again begins anew.
TEST_P(RepeatedPrompt, IsReadAgainWhereItGaveWay) {
  const Request older = MakeRequest(RandomPrompt(100, 2), 90);
  const Request newer = MakeRequest(RandomPrompt(kPrompt, 1), 10);
  const RequestOutcome first = RunAlone(older), second = RunAlone(newer);
  HostPool pool(kPlenty);
  Engine engine({model_.get()}, &pool, {.max_batch_tokens = 10});
  const auto a = engine.Submit(older, nullptr, Keep());
  for (int step = 0; step < 25; ++step) ASSERT_TRUE(engine.Step());  // it has read its prompt
  const auto b = engine.Submit(newer, nullptr, Keep());
  ASSERT_TRUE(a.ok() && b.ok());
  for (int step = 0; step < 30; ++step) ASSERT_TRUE(engine.Step());  // 23 to read, then again
  const int64_t n_free = kPlenty - pool.usage().used_bytes;
  ASSERT_TRUE(pool.SetAside(n_free));
  for (int step = 0; step < 40 && engine.n_waiting() == 0; ++step) ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.n_waiting(), 1);
  pool.ReturnAside(n_free);
  EXPECT_TRUE(engine.RunUntilIdle().ok());
  EXPECT_EQ(outcomes_[*b].n_preemptions, 1);
  EXPECT_GT(outcomes_[*b].n_repeated_tokens, NumberRepeated());
  EXPECT_EQ(outcomes_[*a].tokens, first.tokens);
  EXPECT_EQ(outcomes_[*b].tokens, second.tokens);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

// A document is compressed once and asked many questions, each answered as by a session that goes
// on behind it.
TEST_P(RepeatedPrompt, IsAskedManyQuestionsOnceItIsCompressed) {
  const std::vector<int32_t> document = RandomPrompt(kPrompt, 1);
  HostPool pool(kPlenty);
  Engine engine({model_.get()}, &pool, {.prefix_bytes = kPlenty / 2});
  const RequestOutcome read = Run(&engine, MakeRequest(document, 1));
  EXPECT_EQ(read.n_repeated_tokens, NumberRepeated());
  for (const uint64_t seed : {5, 6, 7}) {
    const RequestOutcome stored = Run(&engine, MakeRequest(Joined(document, Question(seed)), 12));
    EXPECT_EQ(stored.n_prefix_tokens, kPrompt);
    EXPECT_EQ(stored.n_cache_prompt, kPrompt);
    EXPECT_EQ(stored.n_repeated_tokens, 0);

    HostPool other_pool(kPlenty);
    Engine other({model_.get()}, &other_pool, {});
    Session session;
    const auto id = other.Submit(MakeRequest(document, 1), nullptr,
                                 [&](auto request, const RequestOutcome& /*outcome*/) {
                                   session = other.TakeSession(request);
                                 });
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(other.RunUntilIdle().ok());
    session.tokens.resize(kPrompt);  // without the token that was generated
    session.turn_ends = {kPrompt, kPrompt};
    ASSERT_NE(session.cache, nullptr);
    const RequestOutcome went_on = Run(&other, MakeRequest(Question(seed), 12), std::move(session));
    EXPECT_EQ(went_on.tokens, stored.tokens);
  }
  // A prompt that parts before the document's end is read itself, and so is the document alone.
  std::vector<int32_t> other = document;
  other[kPrompt - 3] ^= 1;
  EXPECT_EQ(Run(&engine, MakeRequest(Joined(other, Question(8)), 3)).n_prefix_tokens, 0);
  EXPECT_EQ(Run(&engine, MakeRequest(document, 3)).n_prefix_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Caches, RepeatedPrompt,
                         ::testing::Values("kvzip(keep=0.5,window=8,chunk=70)",
                                           "kvzip(keep=0.5,window=8,heads=own)",
                                           "kvzip(keep=0.8,window=8)+kivi(bits=4)",
                                           "kvzip(keep=0.8,window=8,heads=own)+kivi(bits=4)",
                                           "lathe(ratio=4,run=64)+kvzip(keep=0.7,window=8)"));

}  // namespace
}  // namespace kvlathe
