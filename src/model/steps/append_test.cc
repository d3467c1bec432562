#include "model/steps/append.h"

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

using AppendStepTest = StepTest;

TEST_F(AppendStepTest, SinksAreCopiedWholeAndTheOthersFillBlocksFromTheirSlot) {
  layout.n_sink = 3;
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 3 + kBlockSize + 5);
  ASSERT_TRUE(AppendStep(&layer).Run(&state).ok());
  const AppendPlan& plan = backend.append;
  ASSERT_EQ(plan.items.size(), 2u);  // a KV head each
  EXPECT_EQ(plan.items[1].first_copy, 6);
  EXPECT_EQ(plan.items[1].n_copies, 6);  // K and V of three positions
  EXPECT_EQ(plan.copies[6].to, cache.head(0, 1).sink_k());
  EXPECT_EQ(plan.copies[6].from, layer.rows.WholeKeys(&activations, 1).first);
  EXPECT_EQ(plan.copies[7].to, cache.head(0, 1).sink_v());
  EXPECT_EQ(plan.copies[7].n_bytes, kHeadDim * 4);
  ASSERT_EQ(plan.items[0].n_rows, 2);
  EXPECT_EQ(plan.rows[0].block, cache.head(0, 0).blocks()[0]);
  EXPECT_EQ(plan.rows[0].first_slot, 0);
  EXPECT_EQ(plan.rows[0].n_rows, kBlockSize);
  EXPECT_EQ(plan.rows[1].block, cache.head(0, 0).blocks()[1]);
  EXPECT_EQ(plan.rows[1].n_rows, 5);
  const HeadRows v = layer.rows.Values(&activations, 0);
  EXPECT_EQ(plan.rows[1].v, v.first + (3 + kBlockSize) * v.stride * 4);

  // The next step goes on behind them.
  Begin(&cache, 2);
  ASSERT_TRUE(AppendStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.append.rows.size(), 2u);
  EXPECT_TRUE(backend.append.copies.empty());
  EXPECT_EQ(backend.append.rows[0].block, cache.head(0, 0).blocks()[1]);
  EXPECT_EQ(backend.append.rows[0].first_slot, 5);
  EXPECT_EQ(backend.append.rows[0].n_rows, 2);
}

TEST_F(AppendStepTest, OfAMergedEntryTheLastRowIsStored) {
  layout.retention = RetentionPlan{.merge = MergePlan{.every = 2}};
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 5);
  const int n_closed[] = {0, 0, 1, 1, 2};
  activations.n_closed.assign(n_closed, n_closed + 5);
  activations.n_closed.insert(activations.n_closed.end(), n_closed, n_closed + 5);
  ASSERT_TRUE(AppendStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.append.items[0].n_rows, 3);
  const HeadRows v = layer.rows.Values(&activations, 0);
  const int rows[] = {1, 3, 4};
  for (int e = 0; e < 3; ++e) {
    EXPECT_EQ(backend.append.rows[e].first_slot, e);
    EXPECT_EQ(backend.append.rows[e].n_rows, 1);
    EXPECT_EQ(backend.append.rows[e].v, v.first + rows[e] * v.stride * 4);
  }
}

TEST_F(AppendStepTest, PlansKnowSequencesByTheirNumbersInTheStep) {
  SequenceCache first(&layout, &pool), second(&layout, &pool);
  ASSERT_TRUE(second.Extend(1).ok());
  Begin(&first, 1);
  steps.push_back({.cache = &second, .token_ids = ids});
  activations.n_tokens = 2;
  activations.tokens.push_back({1, 0, false});
  ASSERT_TRUE(activations.Reserve({.v = 2 * kHeadDim, .k_full = 2 * kHeadDim}).ok());
  sequences.Begin(steps);
  ASSERT_TRUE(AppendStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.append.items.size(), 4u);  // two heads of each
  EXPECT_EQ(backend.append.items[1].sequence, 0);
  EXPECT_EQ(backend.append.items[2].sequence, 1);
}

}  // namespace
}  // namespace kvlathe
