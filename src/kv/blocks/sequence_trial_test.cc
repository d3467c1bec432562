// Positions that were taken back leave no trace in what a sequence holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/random.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

CacheLayout PlainLayout() { return {2, 2, 32, 4, std::vector<BlockShape>(4, BlockShape{16, 16})}; }

// Bytes of a cache that was extended step by step as these say, without ever going back.
int64_t BytesBehind(const CacheLayout& layout, const std::vector<int>& steps, int64_t n_prompt) {
  HostPool pool(kUnlimited);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(n_prompt);
  for (const int n_new : steps) EXPECT_TRUE(cache.Extend(n_new).ok());
  return cache.bytes().total();
}

TEST(Trial, WhatIsTakenBackGivesItsBytesBack) {
  const CacheLayout layout = PlainLayout();
  Random random(5);
  HostPool pool(kUnlimited);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(300);
  std::vector<int> steps = {300};
  ASSERT_TRUE(cache.Extend(300).ok());
  for (int round = 0; round < 200; ++round) {
    const int n_before = cache.n_tokens(), n_new = 1 + static_cast<int>(random.Below(90));
    const bool is_trial = random.Below(2) == 0;
    ASSERT_TRUE((is_trial ? cache.ExtendOnTrial(n_new) : cache.Extend(n_new)).ok());
    EXPECT_EQ(cache.is_on_trial(), is_trial);
    EXPECT_EQ(cache.n_least(), n_before);
    const int n_kept = static_cast<int>(random.Below(n_new + 1));
    cache.TakeBack(n_before + n_kept);
    EXPECT_FALSE(cache.is_on_trial());
    EXPECT_EQ(cache.n_tokens(), n_before + n_kept);
    if (n_kept > 0) steps.push_back(n_kept);
    ASSERT_EQ(cache.bytes().total(), BytesBehind(layout, steps, 300)) << "round " << round;
    ASSERT_EQ(cache.bytes().total(), pool.usage().used_bytes);
  }
}

TEST(Trial, EndsNeitherThePromptNorAPruneInterval) {
  CacheLayout layout = PlainLayout();
  layout.retention = RetentionPlan{
      .votes = RetentionPlan::Votes::kAll, .keep = 0.5, .recent_share = 0.5, .prunes_runs = false};
  HostPool pool(kUnlimited);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(200);
  ASSERT_TRUE(cache.Extend(199).ok());
  const int64_t n_bytes = cache.bytes().total();
  ASSERT_TRUE(cache.ExtendOnTrial(300).ok());
  ASSERT_TRUE(cache.ExtendOnTrial(100).ok());
  EXPECT_FALSE(cache.must_prune());
  EXPECT_EQ(cache.n_least(), 199);
  EXPECT_GT(cache.bytes().total(), n_bytes);
  EXPECT_EQ(cache.head(0, 0).n_entries(), 599 - 4);
  cache.TakeBack(199);
  EXPECT_EQ(cache.bytes().total(), n_bytes);
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_TRUE(cache.must_prune());
  EXPECT_EQ(cache.kept().n, 100 - 4);
  EXPECT_EQ(cache.n_least(), 200);  // what ended stays
}

TEST(Trial, WithoutRoomNothingChanges) {
  const CacheLayout layout = PlainLayout();
  HostPool pool(BytesBehind(layout, {100}, 100));
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(100).ok());
  EXPECT_EQ(cache.ExtendOnTrial(100).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(cache.is_on_trial());
  EXPECT_EQ(cache.n_tokens(), 100);
  EXPECT_EQ(cache.bytes().total(), pool.usage().used_bytes);
  ASSERT_TRUE(cache.Extend(20).ok());  // of the block that is there
}

}  // namespace
}  // namespace kvlathe
