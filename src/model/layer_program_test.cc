#include "model/layer_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string_view>

#include "model/small_config.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;

// The names of the steps of a layer of `config` under `layout`.
std::vector<std::string_view> StepsOf(const ModelConfig& config, const CacheLayout& layout,
                                      bool rows_turn = true) {
  const LayerWeights weights;
  auto layer = std::make_unique<Layer>();
  layer->config = &config;
  layer->weights = &weights;
  layer->layout = &layout;
  layer->rows.n_heads = config.n_heads;
  layer->rows.n_kv_heads = config.n_kv_heads;
  layer->rows.turn = rows_turn;
  const LayerProgram program(std::move(layer));
  std::vector<std::string_view> names;
  for (const auto& step : program.steps()) names.push_back(step->name());
  return names;
}

TEST(LayerProgram, OfAPlainDecoder) {
  EXPECT_THAT(StepsOf(SmallConfig(), {}),
              ElementsAre("normalise", "project", "observe", "rotate and map", "append", "attend",
                          "observe outputs", "output", "normalise", "feed forward"));
}

TEST(LayerProgram, NormsOfQueriesAndKeysComeBeforeAnybodySeesThem) {
  ModelConfig config = SmallConfig();
  config.norms.of_qk = QkNormConfig();
  EXPECT_THAT(
      StepsOf(config, {}),
      ElementsAre("normalise", "project", "normalise heads", "observe", "rotate and map", "append",
                  "attend", "observe outputs", "output", "normalise", "feed forward"));
}

TEST(LayerProgram, AParallelBlockNormalisesTheStreamBeforeAttentionIsAdded) {
  ModelConfig config = SmallConfig();
  config.parallel_block = true;
  EXPECT_THAT(StepsOf(config, {}, /*rows_turn=*/false),
              ElementsAre("normalise", "project", "observe", "append", "attend", "observe outputs",
                          "normalise", "output", "feed forward"));
  config.shared_norm = true;
  EXPECT_THAT(StepsOf(config, {}, /*rows_turn=*/false),
              ElementsAre("normalise", "project", "observe", "append", "attend", "observe outputs",
                          "output", "feed forward"));
}

TEST(LayerProgram, RetentionAndSealingAreStepsBetweenAttentionAndItsOutput) {
  CacheLayout layout;
  layout.retention = RetentionPlan{};
  layout.seal = SealPlan{.format = {.codec = UniformCodec{}}};
  EXPECT_THAT(
      StepsOf(SmallConfig(), layout),
      ElementsAre("normalise", "project", "observe", "rotate and map", "append", "attend",
                  "observe outputs", "prune", "seal", "output", "normalise", "feed forward"));
  layout.retention->reads_whole_keys = true;
  layout.seal->format.codec = RotatedCodec{.gathers_queries = true};
  EXPECT_THAT(StepsOf(SmallConfig(), layout),
              ElementsAre("normalise", "project", "observe", "rotate and map", "gather queries",
                          "append", "attend", "observe outputs", "prune", "cut keys", "seal",
                          "output", "normalise", "feed forward"));
}

TEST(LayerProgram, MergedPositionsMergeBeforeTheyTurn) {
  ModelConfig config = SmallConfig();
  config.dmc = DmcConfig{};
  CacheLayout layout;
  layout.retention = RetentionPlan{.merge = MergePlan{}};
  EXPECT_THAT(
      StepsOf(config, layout),
      ElementsAre("normalise", "project", "take decisions", "merge", "observe", "rotate and map",
                  "append", "attend", "observe outputs", "output", "normalise", "feed forward"));
}

TEST(LayerProgram, WhatTheModelLetGoLeavesBeforeOutputsAreAddedToTheStream) {
  ModelConfig config = SmallConfig();
  config.dms = DmsConfig{};
  CacheLayout layout;
  layout.retention = RetentionPlan{.sweep = SweepPlan{.window = 8}};
  layout.seal = SealPlan{.format = {.codec = UniformCodec{}}};
  EXPECT_THAT(
      StepsOf(config, layout),
      ElementsAre("normalise", "project", "observe", "rotate and map", "append", "attend",
                  "observe outputs", "evict", "seal", "output", "normalise", "feed forward"));
  EXPECT_THAT(StepsOf(config, {}),
              ElementsAre("normalise", "project", "observe", "rotate and map", "append", "attend",
                          "observe outputs", "output", "normalise", "feed forward"));
  config.dms->query_channel.emplace();
  EXPECT_THAT(StepsOf(config, layout),
              ElementsAre("normalise", "project", "take query channel", "observe", "rotate and map",
                          "append", "attend", "observe outputs", "evict", "seal", "output",
                          "normalise", "feed forward"));
  EXPECT_THAT(
      StepsOf(config, {}),
      ElementsAre("normalise", "project", "take query channel", "observe", "rotate and map",
                  "append", "attend", "observe outputs", "output", "normalise", "feed forward"));
}

}  // namespace
}  // namespace kvlathe
