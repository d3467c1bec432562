// A sequence that shares the beginning of another one goes on with the bits with which it would
// have gone on if it had read everything itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../sequence_cases.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

constexpr int64_t kBudgetBytes = int64_t{64} << 20;

using testing::Feed;
using testing::MakeCaseModel;
using testing::RandomTokens;
using testing::SequenceCase;

using CachePtr = std::unique_ptr<SequenceCache>;

std::vector<int32_t> Joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class SharedPrefix : public ::testing::TestWithParam<SequenceCase> {
 protected:
  void SetUp() override {
    model_ = MakeCaseModel(GetParam(), &threads_, SelectIsa().value());
    model_->set_deterministic(true);
  }

  CachePtr MakeCache(BlockPool* pool, size_t n_prompt) {
    auto cache = std::make_unique<SequenceCache>(&model_->layout(), pool);
    cache->set_n_prompt(static_cast<int64_t>(n_prompt), 50);
    return cache;
  }

  // Reads ids in pieces, and keeps the cache in the steps that pass one of `ends`.
  std::vector<CachePtr> ReadAndKeep(SequenceCache* cache, std::span<const int32_t> ids,
                                    std::span<const int> ends) {
    std::vector<CachePtr> kept;
    for (size_t begin = 0; begin < ids.size();) {
      const size_t n = std::min({ids.size() - begin, size_t{32},
                                 static_cast<size_t>(std::max<int64_t>(1, cache->max_step()))});
      EXPECT_TRUE(cache->Extend(static_cast<int>(n)).ok());
      for (const int end : ends) {
        if (end <= static_cast<int>(begin) || end > cache->n_tokens()) continue;
        if (!cache->CanShare(end, cache->n_prompt())) continue;
        auto one = cache->Keep({end, cache->n_prompt()});
        EXPECT_TRUE(one.ok()) << one.status();
        kept.push_back(*std::move(one));
      }
      const SequenceStep step = {cache, ids.subspan(begin, n), SequenceStep::Logits::kLast};
      EXPECT_TRUE(model_->Forward({&step, 1}).ok());
      begin += n;
    }
    return kept;
  }

  // The last logits of the rest of a prompt, and those of tokens that follow one by one.
  std::vector<std::string> GoOn(SequenceCache* cache, std::span<const int32_t> prompt) {
    std::vector<std::string> bits = {
        Feed(model_.get(), cache, prompt.subspan(static_cast<size_t>(cache->n_tokens())), 40)};
    for (const int32_t id : RandomTokens(80, 4)) {
      bits.push_back(Feed(model_.get(), cache, {&id, 1}, 1));
    }
    return bits;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_;
};

TEST_P(SharedPrefix, GoesOnAsIfItHadReadEverything) {
  if (!SharesPrefixes(model_->layout())) {
    HostPool pool(kBudgetBytes);
    const CachePtr cache = MakeCache(&pool, 40);
    Feed(model_.get(), cache.get(), RandomTokens(40, 1), 40);
    EXPECT_EQ(cache->CanShare(40, 40), SharesEndedPrompts(model_->layout()));
    EXPECT_EQ(cache->MostShareable(39, 45), 0);
    return;
  }
  for (const int n_common : {3, 21, 70, 150, 281}) {
    SCOPED_TRACE(::testing::Message() << n_common << " tokens in common");
    HostPool pool(kBudgetBytes), other_pool(kBudgetBytes);
    const std::vector<int32_t> common = RandomTokens(n_common, 1);
    const std::vector<int32_t> first = Joined(common, RandomTokens(60, 2));
    const std::vector<int32_t> second = Joined(common, RandomTokens(45, 3));
    const CachePtr alone = MakeCache(&other_pool, second.size());
    const std::vector<std::string> expected = GoOn(alone.get(), second);

    std::vector<CachePtr> offers;
    const CachePtr original = MakeCache(&pool, first.size());
    const int ends[] = {n_common, static_cast<int>(first.size()) - 1};
    offers = ReadAndKeep(original.get(), first, ends);
    for (const CachePtr& kept : offers) kept->SetKept();
    Feed(model_.get(), original.get(), RandomTokens(70, 5), 1);
    auto copy = original->Copy();
    ASSERT_TRUE(copy.ok());
    offers.push_back(*std::move(copy));

    int most = 0;
    for (const CachePtr& offer : offers) {
      for (const int n_most : {n_common, n_common / 2}) {
        const int n = offer->MostShareable(n_most, static_cast<int64_t>(second.size()));
        most = std::max(most, n);
        if (n == 0) continue;
        SCOPED_TRACE(::testing::Message() << n << " shared");
        auto fork = offer->Fork({n, static_cast<int64_t>(second.size()), 50});
        ASSERT_TRUE(fork.ok()) << fork.status();
        EXPECT_EQ(GoOn(fork->get(), second), expected);
        EXPECT_EQ((*fork)->bytes().total(), alone->bytes().total());
      }
    }
    EXPECT_EQ(most, n_common);
    // The original knows nothing of those that shared its blocks: its copy, which shares none,
    // goes on alike.
    EXPECT_EQ(Feed(model_.get(), original.get(), RandomTokens(90, 6), 1),
              Feed(model_.get(), offers.back().get(), RandomTokens(90, 6), 1));
    offers.clear();
    EXPECT_EQ(pool.usage().kept_bytes, 0);
    EXPECT_EQ(pool.usage().used_bytes, original->bytes().total());
  }
}

// Behind what was generated, a sequence goes on as the one that generated it.
TEST_P(SharedPrefix, GoesOnBehindAnAnswer) {
  if (!SharesPrefixes(model_->layout())) return;
  for (const int n_answer : {1, 30, 150}) {
    HostPool pool(kBudgetBytes);
    const std::vector<int32_t> prompt = RandomTokens(99, 1);
    const CachePtr original = MakeCache(&pool, prompt.size());
    Feed(model_.get(), original.get(), prompt, 40);
    Feed(model_.get(), original.get(), RandomTokens(n_answer, 2), 1);
    const int n = original->n_tokens();
    ASSERT_TRUE(original->CanShare(n, original->n_prompt()));
    auto kept = original->Keep({n, original->n_prompt()});
    ASSERT_TRUE(kept.ok()) << kept.status();
    auto fork = (*kept)->Fork({n, original->n_prompt(), 50});
    ASSERT_TRUE(fork.ok()) << fork.status();
    for (const int seed : {3, 4}) {
      const std::vector<int32_t> more = RandomTokens(100, seed);
      EXPECT_EQ(Feed(model_.get(), fork->get(), more, 9),
                Feed(model_.get(), original.get(), more, 9));
    }
    EXPECT_EQ((*fork)->bytes().total(), original->bytes().total());
  }
}

TEST_P(SharedPrefix, CountsWhatOnlyKeepersHold) {
  if (!SharesPrefixes(model_->layout())) return;
  HostPool pool(kBudgetBytes);
  const std::vector<int32_t> prompt = RandomTokens(200, 1);
  CachePtr original = MakeCache(&pool, prompt.size());
  const int ends[] = {199};
  const std::vector<CachePtr> kept = ReadAndKeep(original.get(), prompt, ends);
  ASSERT_EQ(kept.size(), 1u);
  kept[0]->SetKept();
  const int64_t n_needed = original->bytes().total();
  EXPECT_EQ(pool.usage().needed_bytes(), n_needed);
  original->SetKept();
  EXPECT_EQ(pool.usage().needed_bytes(), 0);
  original.reset();
  EXPECT_EQ(pool.usage().needed_bytes(), 0);
  EXPECT_EQ(pool.usage().kept_bytes, kept[0]->bytes().total());
  const int n = kept[0]->n_tokens();
  auto fork = kept[0]->Fork({n, kept[0]->n_prompt()});
  ASSERT_TRUE(fork.ok());
  EXPECT_GE(pool.usage().needed_bytes(), (*fork)->bytes().total());
}

INSTANTIATE_TEST_SUITE_P(Specs, SharedPrefix, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvlathe
