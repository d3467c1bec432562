#include "kv/capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include "kv/blocks/host_pool_fixture.h"
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

// Every n positions become an entry, or as many as these shares say.
CacheLayout Merging(CacheLayout layout, int every) {
  layout.retention =
      RetentionPlan{.merge = MergePlan{.every = every, .window = every == 0 ? 12 : 0}};
  if (every == 0 && layout.seal.has_value()) {  // scales of heads, as each is sealed by itself
    layout.seal->prompt_run = 0;
    std::get<UniformCodec>(layout.seal->format.codec).v.sharing = ScaleSharing::kToken;
  }
  return layout;
}
const std::vector<double> kShares = {0.5, 0.21, 0.125, 0.9};

// What MergeStep does to a cache after each step.
void Merge(SequenceCache* cache) {
  const CacheLayout& layout = cache->layout();
  if (!layout.MergesEntries()) return;
  const double n_behind = std::max(0, cache->n_tokens() - layout.n_sink);
  for (int i = 0; i < std::ssize(layout.shapes); ++i) {
    const int every = layout.retention->merge->every;
    const double share = every == 0 ? kShares[i] : 1.0 / every;
    const auto n_entries = static_cast<int64_t>(std::ceil(share * n_behind - 1e-9));
    cache->SetMerged(i / layout.n_kv_heads, i % layout.n_kv_heads, n_entries);
  }
}

// Heads that merge as the model decides may have nothing to seal where others have.
void Seal(SequenceCache* cache) {
  for (int l = 0; cache->must_seal(); ++l) {
    const auto objects = cache->TakeRunObjects(l);
    ASSERT_TRUE(objects.ok());
    cache->PlaceRun(l, *objects);
  }
}

// To n_tokens positions; false when the pool has no room.
bool Grow(int64_t n_tokens, SequenceCache* cache) {
  while (cache->n_tokens() < n_tokens) {
    const int64_t n = std::min({kMaxStep, n_tokens - cache->n_tokens(), cache->max_step()});
    if (!cache->Extend(static_cast<int>(n)).ok()) return false;
    Merge(cache);
    Seal(cache);
  }
  return true;
}

bool FitsAlone(const CacheLayout& layout, int64_t n_prompt, int64_t budget_bytes) {
  HostPool pool(budget_bytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(n_prompt);
  return Grow(n_prompt, &cache);
}

// Prompts one after the other, then decoding token by token in turn.
bool FitTogether(const CacheLayout& layout, int64_t n, const SequenceLength& length,
                 int64_t budget_bytes) {
  HostPool pool(budget_bytes);
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
      Merge(&cache);
      Seal(&cache);
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

// What merged takes no memory, so more fit than if nothing had.
TEST(Capacity, SequencesThatMergeFitByWhatTheirHeadsKeep) {
  for (const CacheLayout& layout : {Merging(Plain(), 0), Merging(Plain(), 4),
                                    Merging(Sealed(0, 1), 0), Merging(Sealed(128, 1), 4)}) {
    const std::vector<double> shares =
        layout.ModelDecidesEntries() ? kShares : std::vector<double>();
    for (const SequenceLength& length :
         {SequenceLength{910, kMaxStep, 902}, SequenceLength{970, kMaxStep, 704}}) {
      const int64_t budget_bytes = 4'000'000;
      const int64_t n = SequencesThatFit(layout, length, budget_bytes, shares);
      SCOPED_TRACE(testing::Message() << length.n_tokens << " positions, " << n << " sequences, "
                                      << (layout.seal.has_value() ? "sealed" : "in 16 bits")
                                      << ", merged by " << layout.retention->merge->every);
      ASSERT_GT(n, 1);
      EXPECT_TRUE(FitTogether(layout, n, length, budget_bytes));
      EXPECT_FALSE(FitTogether(layout, n + 1 + n / 10, length, budget_bytes));
      if (shares.empty()) continue;
      EXPECT_GT(n, SequencesThatFit(layout, length, budget_bytes) * 3 / 2);
      EXPECT_GT(LongestPrompt(layout, 300'000, kMaxStep, 100'000, shares),
                LongestPrompt(layout, 300'000, kMaxStep, 100'000) * 3 / 2);
    }
  }
}

TEST(Capacity, TheLongestPromptThatMergesIsTheLongestThatAPoolHolds) {
  for (const CacheLayout& layout : {Merging(Plain(), 0), Merging(Plain(), 4)}) {
    const std::vector<double> shares =
        layout.ModelDecidesEntries() ? kShares : std::vector<double>();
    for (const int64_t budget_bytes : {100'000, 333'333}) {
      const int64_t n = LongestPrompt(layout, budget_bytes, kMaxStep, 100'000, shares);
      SCOPED_TRACE(testing::Message() << budget_bytes << " bytes, " << n << " positions");
      ASSERT_GT(n, 0);
      EXPECT_TRUE(FitsAlone(layout, n, budget_bytes));
      // The step that a longer one fails in may begin elsewhere among the blocks.
      EXPECT_FALSE(FitsAlone(layout, n + n / 10, budget_bytes));
    }
  }
}

}  // namespace
}  // namespace kvlathe
