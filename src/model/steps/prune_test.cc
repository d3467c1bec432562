#include "model/steps/prune.h"

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

class PruneStepTest : public StepTest {
 protected:
  PruneStepTest() {
    layout.retention = RetentionPlan{.votes = RetentionPlan::Votes::kLast, .n_kept = 20};
  }
};

TEST_F(PruneStepTest, WhereAPromptEndsEachHeadKeepsItsEntriesInTheirOrder) {
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(30);
  Begin(&cache, 30);
  ASSERT_TRUE(cache.must_prune());
  ASSERT_TRUE(PruneStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.pruned.size(), 2u);
  EXPECT_EQ(backend.pruned[1].n_entries, 30);
  EXPECT_TRUE(backend.pruned[1].opened.empty());
  EXPECT_EQ(backend.prune.kept.n, 20);
  EXPECT_TRUE(backend.prune.in_order);
  EXPECT_EQ(cache.head(0, 0).n_entries(), 20);
  EXPECT_FALSE(cache.must_prune());

  // While decoding, the last entries may fill the gaps.
  Begin(&cache, 1);
  ASSERT_TRUE(PruneStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.pruned[0].n_entries, 21);
  EXPECT_FALSE(backend.prune.in_order);
}

TEST_F(PruneStepTest, ASequenceThatHasFailedDropsNothing) {
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(30);
  Begin(&cache, 30);
  sequences.Fail(&cache, Error(StatusCode::kDataLoss, "rows are not finite"));
  ASSERT_TRUE(PruneStep(&layer).Run(&state).ok());
  EXPECT_TRUE(backend.pruned.empty());
  EXPECT_EQ(cache.head(0, 0).n_entries(), 30);
}

}  // namespace
}  // namespace kvlathe
