// A copy of a sequence goes on with the bits that the original would have gone on with.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "sequence_cases.h"

namespace kvlathe {
namespace {

constexpr int64_t kBudgetBytes = int64_t{64} << 20;

using testing::Feed;
using testing::MakeCaseModel;
using testing::RandomTokens;
using testing::SequenceCase;

class CopiedSequence : public ::testing::TestWithParam<SequenceCase> {
 protected:
  std::unique_ptr<SequenceCache> Read(BlockPool* pool, int n_prompt) {
    auto cache = std::make_unique<SequenceCache>(&model_->layout(), pool);
    cache->set_n_prompt(n_prompt, 50);
    Feed(model_.get(), cache.get(), RandomTokens(n_prompt, 1), 512);
    return cache;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Model> model_ = MakeCaseModel(GetParam(), &threads_, SelectIsa().value());
};

constexpr int kPromptLengths[] = {1, 68, 280};

// Three sequences that read the same: one that is never copied, one that is, and the copy; and then
// a copy of the copy, which stays when all others are gone.
TEST_P(CopiedSequence, GoesOnWithTheSameBitsAndLeavesTheOriginalAlone) {
  for (const int n_prompt : kPromptLengths) {
    SCOPED_TRACE(::testing::Message() << n_prompt);
    HostPool pool(kBudgetBytes), other_pool(kBudgetBytes);
    const auto alone = Read(&other_pool, n_prompt);
    auto original = Read(&pool, n_prompt);
    auto copied = original->Copy();
    ASSERT_TRUE(copied.ok()) << copied.status();
    std::unique_ptr<SequenceCache> copy = *std::move(copied);
    EXPECT_EQ(copy->bytes().total(), original->bytes().total());
    EXPECT_EQ(pool.usage().used_bytes, 2 * original->bytes().total());
    // What the original reads in between is other than what the copy reads.
    Feed(model_.get(), original.get(), RandomTokens(40, 7), 40);
    for (const int32_t id : RandomTokens(70, 2)) {
      const std::string expected = Feed(model_.get(), alone.get(), {&id, 1}, 1);
      ASSERT_EQ(Feed(model_.get(), copy.get(), {&id, 1}, 1), expected) << copy->n_tokens();
      ASSERT_EQ(copy->bytes().total(), alone->bytes().total()) << copy->n_tokens();
    }
    original.reset();
    EXPECT_EQ(pool.usage().used_bytes, copy->bytes().total());
    auto second = copy->Copy();
    ASSERT_TRUE(second.ok()) << second.status();
    copy.reset();
    const std::vector<int32_t> more = RandomTokens(90, 3);
    const std::string expected = Feed(model_.get(), alone.get(), more, 32);
    EXPECT_EQ(Feed(model_.get(), second->get(), more, 32), expected);
    EXPECT_EQ((*second)->bytes().total(), alone->bytes().total());
    second->reset();
    EXPECT_EQ(pool.usage().used_bytes, 0);
  }
}

TEST_P(CopiedSequence, TheOriginalGoesOnAsIfNeverCopied) {
  for (const int n_prompt : kPromptLengths) {
    SCOPED_TRACE(::testing::Message() << n_prompt);
    HostPool pool(kBudgetBytes), other_pool(kBudgetBytes);
    const auto alone = Read(&other_pool, n_prompt), original = Read(&pool, n_prompt);
    {
      auto copy = original->Copy();
      ASSERT_TRUE(copy.ok()) << copy.status();
      Feed(model_.get(), copy->get(), RandomTokens(100, 7), 9);
    }
    EXPECT_EQ(pool.usage().used_bytes, original->bytes().total());
    const std::vector<int32_t> more = RandomTokens(120, 3);
    const std::string expected = Feed(model_.get(), alone.get(), more, 13);
    EXPECT_EQ(Feed(model_.get(), original.get(), more, 13), expected);
    EXPECT_EQ(original->bytes().total(), alone->bytes().total());
  }
}

TEST_P(CopiedSequence, TakesNothingWhereTheBudgetDoesNotHoldIt) {
  HostPool pool(kBudgetBytes);
  const auto original = Read(&pool, 210);
  Feed(model_.get(), original.get(), RandomTokens(5, 2), 1);
  const int64_t n_bytes = original->bytes().total();
  ASSERT_EQ(pool.usage().used_bytes, n_bytes);
  for (int64_t percent = 0; percent <= 100; percent += 4) {
    const int64_t room = percent == 100 ? n_bytes - 64 : n_bytes * percent / 100;
    ASSERT_TRUE(pool.SetAside(kBudgetBytes - n_bytes - room));
    const auto copy = original->Copy();
    EXPECT_EQ(copy.status().code(), StatusCode::kResourceExhausted) << room;
    EXPECT_EQ(pool.usage().used_bytes, n_bytes) << room;
    pool.ReturnAside(kBudgetBytes - n_bytes - room);
  }
  ASSERT_TRUE(pool.SetAside(kBudgetBytes - 2 * n_bytes));
  EXPECT_TRUE(original->Copy().ok());
  pool.ReturnAside(kBudgetBytes - 2 * n_bytes);
}

INSTANTIATE_TEST_SUITE_P(Specs, CopiedSequence, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

TEST(SequenceCacheCopy, OfAnEmptySequenceIsEmpty) {
  const CacheLayout layout = {2, 2, 32, 4, std::vector<BlockShape>(4, BlockShape{16, 16})};
  HostPool pool(kBudgetBytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(7, 3);
  const auto copy = cache.Copy();
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ((*copy)->n_tokens(), 0);
  EXPECT_EQ((*copy)->n_prompt(), 7);
  EXPECT_EQ((*copy)->n_generated(), 3);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

}  // namespace
}  // namespace kvlathe
