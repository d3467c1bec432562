// What the prefix store finds, keeps and gives up, and what requests compute because of it.
#include "engine/prefixes/prefix_store.h"

#include <gtest/gtest.h>

#include <algorithm>
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

constexpr int64_t kPoolBytes = int64_t{64} << 20;

std::vector<int32_t> PrefixOf(const std::vector<int32_t>& tokens, int n,
                              const std::vector<int32_t>& rest = {}) {
  std::vector<int32_t> joined(tokens.begin(), tokens.begin() + n);
  joined.insert(joined.end(), rest.begin(), rest.end());
  return joined;
}

class PrefixStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<SequenceCache> MakeCache(size_t n_tokens) {
    auto cache = std::make_unique<SequenceCache>(&layout_, &pool_);
    cache->set_n_prompt(static_cast<int64_t>(n_tokens));
    EXPECT_TRUE(cache->Extend(static_cast<int>(n_tokens)).ok());
    return cache;
  }
  void Add(const std::vector<int32_t>& tokens) {
    store_->Add(key_, tokens, MakeCache(tokens.size()));
  }
  PrefixStore::Found Find(const std::vector<int32_t>& tokens) {
    return store_->Find({.key = &key_, .tokens = tokens, .n_prompt = std::ssize(tokens)});
  }
  int CountFound(const std::vector<int32_t>& tokens) {
    return store_->CountFound({.key = &key_, .tokens = tokens, .n_prompt = std::ssize(tokens)});
  }
  void Use(int64_t budget, int64_t max_bytes) {
    store_.reset();
    ASSERT_TRUE(pool_.SetAside(kPoolBytes - budget));
    store_ = std::make_unique<PrefixStore>(&pool_, max_bytes);
  }

  const CacheLayout layout_ = {2, 2, 32, 4, std::vector<BlockShape>(4, BlockShape{16, 16})};
  HostPool pool_{kPoolBytes};
  const PrefixKey key_ = {&layout_, "key"};
  std::unique_ptr<PrefixStore> store_ = std::make_unique<PrefixStore>(&pool_, kPoolBytes);
};

TEST_F(PrefixStoreTest, FindsTheLongestCommonPrefix) {
  const std::vector<int32_t> text = RandomPrompt(200, 1);
  Add(PrefixOf(text, 100));
  Add(PrefixOf(text, 60, RandomPrompt(90, 2)));
  EXPECT_EQ(store_->n_entries(), 2);
  PrefixStore::Found found = Find(PrefixOf(text, 80, RandomPrompt(40, 3)));
  ASSERT_NE(found.cache, nullptr);
  EXPECT_EQ(found.cache->n_tokens(), 80);
  EXPECT_EQ(found.cache->n_prompt(), 120);
  EXPECT_EQ(found.n_common, 80);
  EXPECT_EQ(CountFound(text), 100);
  EXPECT_EQ(CountFound(PrefixOf(text, 60, RandomPrompt(90, 2))), 149);
  EXPECT_EQ(CountFound(RandomPrompt(150, 4)), 0);
}

TEST_F(PrefixStoreTest, LeavesTheLastTokenToCompute) {
  const std::vector<int32_t> text = RandomPrompt(100, 1);
  Add(text);
  EXPECT_EQ(Find(text).cache->n_tokens(), 99);
}

TEST_F(PrefixStoreTest, FewTokensAreNotWorthIt) {
  const std::vector<int32_t> text = RandomPrompt(100, 1);
  Add(text);
  const auto begin = [&](int n) { return PrefixOf(text, n, RandomPrompt(30, 9)); };
  EXPECT_EQ(Find(begin(PrefixStore::kLeastTokens - 1)).cache, nullptr);
  EXPECT_NE(Find(begin(PrefixStore::kLeastTokens)).cache, nullptr);
}

TEST_F(PrefixStoreTest, OtherSaltsAndLayoutsShareNothing) {
  const std::vector<int32_t> text = RandomPrompt(100, 1);
  Add(text);
  const CacheLayout same = layout_;
  for (const PrefixKey& other : {PrefixKey{&layout_, "other key"}, PrefixKey{&same, "key"}}) {
    EXPECT_EQ(store_->CountFound({.key = &other, .tokens = text, .n_prompt = 100}), 0);
  }
  EXPECT_EQ(CountFound(text), 99);
}

TEST_F(PrefixStoreTest, TheLeastRecentlyUsedGoesFirst) {
  const std::vector<int32_t> a = RandomPrompt(100, 1), b = RandomPrompt(100, 2),
                             c = RandomPrompt(100, 3);
  const int64_t n_bytes = MakeCache(100)->bytes().total();
  Use(kPoolBytes, 2 * n_bytes);
  Add(a);
  Add(b);
  EXPECT_NE(Find(a).cache, nullptr);
  Add(c);
  EXPECT_EQ(CountFound(a), 99);
  EXPECT_EQ(CountFound(b), 0);
  EXPECT_EQ(CountFound(c), 99);
  EXPECT_EQ(pool_.usage().kept_bytes, 2 * n_bytes);
  ASSERT_TRUE(store_->EvictOldest());
  EXPECT_EQ(CountFound(a), 0);
  ASSERT_TRUE(store_->EvictOldest());
  EXPECT_FALSE(store_->EvictOldest());
  EXPECT_EQ(pool_.usage().used_bytes, 0);
}

TEST_F(PrefixStoreTest, WhatIsLargerThanTheBoundPushesNothingOut) {
  const std::vector<int32_t> text = RandomPrompt(100, 1);
  Use(kPoolBytes, MakeCache(300)->bytes().total() - 1);
  Add(text);
  Add(RandomPrompt(300, 2));
  EXPECT_EQ(store_->n_entries(), 1);
  EXPECT_EQ(CountFound(text), 99);
}

TEST_F(PrefixStoreTest, WithoutBytesItTakesNothing) {
  Use(kPoolBytes, 0);
  EXPECT_FALSE(store_->Takes(layout_));
  Add(RandomPrompt(100, 1));
  EXPECT_EQ(store_->n_entries(), 0);
  EXPECT_EQ(pool_.usage().used_bytes, 0);
}

// The turns of a conversation: each has all that the one before has.
TEST_F(PrefixStoreTest, AnEntryThatAnotherOneCoversGoes) {
  const std::vector<int32_t> text = RandomPrompt(200, 1);
  Add(PrefixOf(text, 50));
  Add(PrefixOf(text, 120));
  Add(text);
  EXPECT_EQ(store_->n_entries(), 1);
  Add(PrefixOf(text, 120));
  EXPECT_EQ(store_->n_entries(), 1);
  EXPECT_EQ(CountFound(text), 199);
  Add(PrefixOf(text, 120, RandomPrompt(10, 2)));
  EXPECT_EQ(store_->n_entries(), 2);
}

TEST_F(PrefixStoreTest, WhatWasFoundOutlivesItsEntry) {
  const std::vector<int32_t> text = RandomPrompt(200, 1);
  Add(text);
  std::unique_ptr<SequenceCache> found = Find(PrefixOf(text, 150, RandomPrompt(10, 2))).cache;
  ASSERT_NE(found, nullptr);
  store_->Clear();
  EXPECT_EQ(pool_.usage().used_bytes, found->bytes().total());
  EXPECT_EQ(pool_.usage().kept_bytes, 0);
  EXPECT_TRUE(found->Extend(10).ok());
  found.reset();
  EXPECT_EQ(pool_.usage().used_bytes, 0);
}

TEST_F(PrefixStoreTest, OthersGiveWayToWhatIsFound) {
  const std::vector<int32_t> text = RandomPrompt(100, 1);
  const int64_t n_bytes = MakeCache(100)->bytes().total();
  Use(2 * n_bytes, kPoolBytes);
  Add(RandomPrompt(100, 2));
  Add(text);
  EXPECT_NE(Find(text).cache, nullptr);  // which copies its last block
  EXPECT_EQ(store_->n_entries(), 1);
}

// --- Requests. ---

class CountingObserver : public EngineObserver {
 public:
  void OnStepEnded(const StepWork& work, const EngineLoad&, double, const Status&) override {
    n_fill_tokens += work.n_fill_tokens;
  }
  void OnPrefixFound(RequestId, int n_prompt, int n_stored) override {
    n_asked += n_prompt;
    n_found += n_stored;
  }
  int n_fill_tokens = 0;
  int n_asked = 0, n_found = 0;
};

class StoringEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto weights =
        ModelWeights::Load(WideConfig(/*head_dim=*/32), DType::kBf16, MakeRandomSource(3),
                           MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    model_ = MakeSmallModel(*std::move(weights), GetParam());
  }

  static Request MakeRequest(std::vector<int32_t> prompt, int max_tokens = 8) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    return request;
  }
  Engine MakeEngine(int64_t prefix_bytes = kPoolBytes / 2) {
    return {{model_.get()},
            &pool_,
            {.max_batch_tokens = 512, .prefix_bytes = prefix_bytes, .observer = &observer_}};
  }
  // All at once, to their ends.
  std::vector<RequestOutcome> Run(Engine* engine, const std::vector<Request>& requests) {
    observer_ = {};
    std::vector<RequestOutcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine->Submit(
          requests[i], nullptr, [&outcomes, i](auto, const RequestOutcome& o) { outcomes[i] = o; });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return outcomes;
  }
  // Without a store.
  std::vector<int32_t> Alone(const Request& request) {
    HostPool pool(kPoolBytes);
    Engine engine({model_.get()}, &pool, {});
    std::vector<int32_t> tokens;
    EXPECT_TRUE(
        engine.Submit(request, nullptr, [&](auto, const RequestOutcome& o) { tokens = o.tokens; })
            .ok());
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    return tokens;
  }

  ThreadPool threads_{1};
  std::unique_ptr<Model> model_;
  HostPool pool_{kPoolBytes};
  CountingObserver observer_;
};

TEST_P(StoringEngineTest, APromptThatWasReadIsNotReadAgain) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Engine engine = MakeEngine();
  const RequestOutcome first = Run(&engine, {request})[0];
  EXPECT_EQ(first.n_prefix_tokens, 0);
  EXPECT_EQ(observer_.n_fill_tokens, 300);
  EXPECT_EQ(observer_.n_asked, 300);
  EXPECT_EQ(observer_.n_found, 0);
  EXPECT_EQ(pool_.usage().needed_bytes(), 0);
  const RequestOutcome again = Run(&engine, {request})[0];
  EXPECT_EQ(again.n_prefix_tokens, 299);
  EXPECT_EQ(observer_.n_fill_tokens, 1);
  EXPECT_EQ(observer_.n_asked, 300);
  EXPECT_EQ(observer_.n_found, 299);
  EXPECT_EQ(first.tokens, Alone(request));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.kv_bytes.total(), first.kv_bytes.total());
}

TEST_P(StoringEngineTest, SeveralAnswersToOnePromptReadItOnce) {
  Request request = MakeRequest(RandomPrompt(400, 1));
  Engine engine = MakeEngine();
  const std::vector<RequestOutcome> outcomes = Run(&engine, {4, request});
  EXPECT_EQ(observer_.n_fill_tokens, 403);
  for (const RequestOutcome& outcome : outcomes) EXPECT_EQ(outcome.tokens, outcomes[0].tokens);
  EXPECT_EQ(outcomes[0].tokens, Alone(request));
}

TEST_P(StoringEngineTest, QuestionsAfterOneDocumentReadItOnceOrTwice) {
  const std::vector<int32_t> document = RandomPrompt(700, 1);
  Engine engine = MakeEngine();
  for (int i = 0; i < 4; ++i) {
    const Request request = MakeRequest(PrefixOf(document, 600, RandomPrompt(200 + i, 5)));
    const RequestOutcome outcome = Run(&engine, {request})[0];
    EXPECT_EQ(outcome.tokens, Alone(request));
    // The second one finds that it goes another way, and leaves what the others begin behind.
    if (i >= 2) EXPECT_EQ(outcome.n_prefix_tokens, 600);
  }
}

TEST_P(StoringEngineTest, AConversationGoesOnBehindItsAnswers) {
  Engine engine = MakeEngine();
  std::vector<int32_t> text;
  for (int turn = 0; turn < 5; ++turn) {
    const size_t n_before = text.size();
    const std::vector<int32_t> message = RandomPrompt(60 + turn, 7);
    text.insert(text.end(), message.begin(), message.end());
    const RequestOutcome outcome = Run(&engine, {MakeRequest(text, 40)})[0];
    // The last token of an answer was never computed.
    if (turn > 0) EXPECT_EQ(outcome.n_prefix_tokens, n_before - 1);
    text.insert(text.end(), outcome.tokens.begin(), outcome.tokens.end());
  }
}

TEST_P(StoringEngineTest, PromptsWhoseLogprobsAreAskedForAreReadAnew) {
  Request request = MakeRequest(RandomPrompt(100, 1));
  Engine engine = MakeEngine();
  Run(&engine, {request});
  request.n_top_logprobs = 0;
  request.prompt_logprobs = true;
  const RequestOutcome outcome = Run(&engine, {request})[0];
  EXPECT_EQ(outcome.n_prefix_tokens, 0);
  EXPECT_EQ(outcome.prompt_logprobs.size(), 100u);
  EXPECT_EQ(observer_.n_asked, 0);
}

TEST_P(StoringEngineTest, WithoutBytesNothingIsKept) {
  const Request request = MakeRequest(RandomPrompt(100, 1));
  Engine engine = MakeEngine(/*prefix_bytes=*/0);
  Run(&engine, {request});
  EXPECT_EQ(pool_.usage().used_bytes, 0);
  Run(&engine, {request});
  EXPECT_EQ(observer_.n_fill_tokens, 100);
  EXPECT_EQ(observer_.n_asked, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Caches, StoringEngineTest,
    ::testing::Values("none", "kivi(bits=4)", "lathe(ratio=4,scales=static,open=8,keys=centred)"),
    [](const auto& test) {
      return std::string(test.param).substr(0, std::string(test.param).find('('));
    });

}  // namespace
}  // namespace kvlathe
