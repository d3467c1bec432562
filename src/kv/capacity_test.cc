#include "kv/capacity.h"

#include <gtest/gtest.h>

#include <list>

#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxStep = 50;

CacheLayout Plain() { return {2, 2, 32, 4, {{32, 16}, {16, 16}, {32, 32}, {16, 48}}}; }

CacheLayout Sealed(int prompt_run, double repaired_share) {
  CacheLayout layout = Plain();
  layout.seal = SealPlan{.format = {.codec = UniformCodec{}},
                         .prompt_run = prompt_run,
                         .repaired_share = repaired_share};
  layout.seal->format.codec =
      UniformCodec{.k = {.bits = 2, .sharing = ScaleSharing::kChannel, .group = 32},
                   .v = {.bits = 4, .sharing = ScaleSharing::kTokenLayer}};
  layout.seal->format.prompt_rank = 4;
  layout.seal->format.decode_rank = 2;
  layout.seal->format.sparse_share = 0.1;
  return layout;
}

// To n_tokens positions; false when the pool has no room.
bool Grow(int64_t n_tokens, SequenceCache* cache) {
  while (cache->n_tokens() < n_tokens) {
    const int64_t n = std::min({kMaxStep, n_tokens - cache->n_tokens(), cache->max_step()});
    if (!cache->Extend(static_cast<int>(n)).ok()) return false;
    for (int l = 0; cache->must_seal(); ++l) {
      const auto objects = cache->TakeRunObjects(l);
      EXPECT_TRUE(objects.ok());
      cache->PlaceRun(l, *objects);
    }
  }
  return true;
}

bool FitsAlone(const CacheLayout& layout, int64_t n_prompt, int64_t budget_bytes) {
  BlockPool pool(budget_bytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(n_prompt);
  return Grow(n_prompt, &cache);
}

// Prompts one after the other, then decoding token by token in turn.
bool FitTogether(const CacheLayout& layout, int64_t n, const SequenceLength& length,
                 int64_t budget_bytes) {
  BlockPool pool(budget_bytes);
  std::list<SequenceCache> caches;
  for (int64_t i = 0; i < n; ++i) {
    SequenceCache& cache = caches.emplace_back(&layout, &pool);
    cache.set_n_prompt(length.n_prompt);
    if (!Grow(length.n_prompt, &cache)) return false;
  }
  for (int64_t t = length.n_prompt + 1; t <= length.n_tokens; ++t) {
    // A step makes room for all of them before any is sealed.
    for (SequenceCache& cache : caches) {
      if (!cache.Extend(1).ok()) return false;
    }
    for (SequenceCache& cache : caches) {
      for (int l = 0; cache.must_seal(); ++l) cache.PlaceRun(l, cache.TakeRunObjects(l).value());
    }
  }
  return true;
}

TEST(Capacity, TheLongestPromptIsTheLongestThatAPoolHolds) {
  for (const CacheLayout& layout :
       {Plain(), Sealed(0, 1), Sealed(128, 1), Sealed(512, 1), Sealed(64, 0.5)}) {
    for (const int64_t budget_bytes : {30'000, 100'000, 333'333}) {
      const int64_t n = LongestPrompt(layout, budget_bytes, kMaxStep, 100'000);
      SCOPED_TRACE(testing::Message() << budget_bytes << " bytes, " << n << " positions");
      ASSERT_GT(n, 0);
      EXPECT_TRUE(FitsAlone(layout, n, budget_bytes));
      EXPECT_FALSE(FitsAlone(layout, n + 1, budget_bytes));
    }
  }
  EXPECT_EQ(LongestPrompt(Plain(), 30'000, kMaxStep, 10), 10);
  EXPECT_EQ(LongestPrompt(Plain(), 100, kMaxStep, 1000), 0);
}

TEST(Capacity, SequencesThatFitDoAndOneMoreDoesNot) {
  for (const CacheLayout& layout : {Plain(), Sealed(0, 1), Sealed(128, 1), Sealed(64, 0.5)}) {
    // Within a block, and over the end of one that is sealed.
    for (const SequenceLength& length :
         {SequenceLength{210, kMaxStep, 202}, SequenceLength{270, kMaxStep, 204}}) {
      for (const int64_t budget_bytes : {400'000, 2'000'000}) {
        const int64_t n = SequencesThatFit(layout, length, budget_bytes);
        SCOPED_TRACE(testing::Message() << length.n_tokens << " positions, " << budget_bytes
                                        << " bytes, " << n << " sequences");
        ASSERT_GT(n, 1);
        EXPECT_TRUE(FitTogether(layout, n, length, budget_bytes));
        EXPECT_FALSE(FitTogether(layout, n + 1 + n / 10, length, budget_bytes));
      }
    }
  }
  EXPECT_EQ(SequencesThatFit(Plain(), {200, 1, 100}, 1000), 0);
}

}  // namespace
}  // namespace kvlathe
