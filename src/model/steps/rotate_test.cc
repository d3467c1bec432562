#include "model/steps/rotate.h"

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

using RotateStepTest = StepTest;

TEST_F(RotateStepTest, AQueryGroupTurnsBesideItsKey) {
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 4);
  ASSERT_TRUE(RotateStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.turns.size(), 2u);
  const ObjectPlace qk = activations.qk.place();
  const HeadTurn& head = backend.turns[1];
  EXPECT_EQ(head.q, qk + 2 * kHeadDim * 4);  // two query heads share a KV head
  EXPECT_EQ(head.k, qk + (4 + 1) * kHeadDim * 4);
  EXPECT_EQ(head.turned_q, activations.q_full.place() + 4 * 2 * kHeadDim * 4);
  EXPECT_EQ(head.turned_k.first, activations.k_full.place() + 4 * kHeadDim * 4);
  EXPECT_TRUE(head.key_map.is_null());
  EXPECT_EQ(backend.rotation.stride, 6 * kHeadDim);
  EXPECT_EQ(backend.rotation.first_unturned, RotatePlan::kAllTurn);
}

TEST_F(RotateStepTest, LatentKeysBehindTheSinksDoNotTurn) {
  layout.keys = LatentKeys{};
  layout.n_sink = 2;
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 4);
  ASSERT_TRUE(RotateStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.rotation.first_unturned, 2);
}

TEST_F(RotateStepTest, TheDecidingChannelOfDmcStaysZeroWhereTheModelWasTaughtSo) {
  config.dmc = DmcConfig{};
  config.dmc->zeroes_after_rope = true;
  config.dmc->is_last = true;
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 1);
  ASSERT_TRUE(RotateStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.rotation.zeroed_channel, kHeadDim - 1);
  EXPECT_FALSE(backend.rotation.zeroes_first_query_only);
}

TEST_F(RotateStepTest, TheDecidingChannelOfDmsStaysZeroInTheFirstQueryAlone) {
  config.dms = DmsConfig{.query_channel = DmsConfig::QueryChannel{}};
  SequenceCache cache(&layout, &pool);
  Begin(&cache, 1);
  ASSERT_TRUE(RotateStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.rotation.zeroed_channel, kHeadDim - 1);
  EXPECT_TRUE(backend.rotation.zeroes_first_query_only);
  config.dms->query_channel->zeroes_after_rope = false;
  ASSERT_TRUE(RotateStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.rotation.zeroed_channel, -1);
}

}  // namespace
}  // namespace kvlathe
