#include "model/steps/merge.h"

#include <cmath>

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

using MergeStepTest = StepTest;

TEST_F(MergeStepTest, DecidingChannelsAreTakenOutOfQueriesAndKeys) {
  config.dmc = DmcConfig{.is_last = false};
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 2);
  ASSERT_TRUE(TakeDecisionsStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.channels.size(), 1u);
  const TakeChannelPlan& plan = backend.channels[0];
  EXPECT_EQ(plan.rows, activations.qk.place());
  EXPECT_EQ(plan.n_rows, 2 * 6);  // four query heads and two KV heads a token
  EXPECT_EQ(plan.n_dims, kHeadDim);
  EXPECT_EQ(plan.channel, 0);
  EXPECT_EQ(activations.decisions, std::vector<float>(12, PlanRecorder::kDecision));
}

TEST_F(MergeStepTest, KeysSayWhoJoinsAndTheMeanOfTheirQueriesWithWhatWeight) {
  config.dmc = DmcConfig{.offset = 5, .epsilon = 0.25f};
  layout.retention = RetentionPlan{.merge = MergePlan{}};
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 2);
  activations.decisions = {0, 0, -7, -3, 4, 6,  // token 0: four query heads, two KV heads
                           0, 0, 0,  0,  6, 4};
  MergeStep step(&layer);  // which keeps what its plan points to
  ASSERT_TRUE(step.Run(&state).ok());
  ASSERT_EQ(backend.merges.size(), 2u);
  EXPECT_EQ(backend.merges[0].joins[0], 0);
  EXPECT_EQ(backend.merges[0].joins[1], 1);
  EXPECT_EQ(backend.merges[1].joins[0], 1);
  EXPECT_EQ(backend.merges[1].joins[1], 0);
  EXPECT_FLOAT_EQ(backend.merges[1].weights[0], 0.5f + 0.25f);  // the mean of -7 and -3, plus 5
  EXPECT_FLOAT_EQ(backend.merges[0].weights[0], 1 / (1 + std::exp(-5.0f)) + 0.25f);
  EXPECT_EQ(cache.head(0, 0).n_entries(), 2);  // as the backend said
}

TEST_F(MergeStepTest, PoolingJoinsAllButEveryNthPositionBehindTheSinks) {
  layout.n_sink = 1;
  layout.retention = RetentionPlan{.merge = MergePlan{.every = 3}};
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 6);
  MergeStep step(&layer);  // which keeps what its plan points to
  ASSERT_TRUE(step.Run(&state).ok());
  const MergeItem& item = backend.merges[0];
  EXPECT_EQ(item.n_sinks, 1);
  const int joins[] = {0, 1, 1, 0, 1};
  for (int t = 1; t < 6; ++t) {
    EXPECT_EQ(item.joins[t], joins[t - 1]) << t;
    EXPECT_EQ(item.weights[t], 1);
  }
}

}  // namespace
}  // namespace kvlathe
