// A layer, its activations and a backend that records plans, for tests of steps.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "cpu/kernels/residents/cpu_residents.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/small_config.h"
#include "model/steps/plan_recorder.h"
#include "model/steps/step.h"

namespace kvlathe {

class StepTest : public ::testing::Test {
 protected:
  static constexpr int kHeadDim = 32;

  StepTest() {
    layout.n_layers = 1;
    layout.n_kv_heads = config.n_kv_heads;
    layout.head_dim = kHeadDim;
    layout.shapes.assign(config.n_kv_heads, BlockShape{kHeadDim, kHeadDim, DType::kF32});
    activations.memory = &memory;
    layer.config = &config;
    layer.weights = &weights;
    layer.layout = &layout;
    layer.rotations = &rotations;
    layer.rows.n_heads = config.n_heads;
    layer.rows.n_kv_heads = config.n_kv_heads;
    layer.rows.head_dim = kHeadDim;
    for (int g = 0; g < config.n_kv_heads; ++g) {
      layer.rows.k_offsets.push_back((g + 1) * kHeadDim);
      layer.rows.v_offsets.push_back((g + 1) * kHeadDim);
    }
  }

  // A table on the machine.
  FloatTable Table(std::vector<float> values) {
    auto table = FloatTable::Make(&memory, std::move(values), "a table");
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }

  // A step of one sequence that adds n_new positions to `cache`.
  void Begin(SequenceCache* cache, int n_new) {
    ASSERT_TRUE(cache->Extend(n_new).ok());
    ids.assign(n_new, 1);
    steps = {{.cache = cache, .token_ids = ids}};
    activations.tokens.clear();
    for (int t = 0; t < n_new; ++t) {
      activations.tokens.push_back({1, cache->n_tokens() - n_new + t, false});
    }
    activations.n_tokens = n_new;
    const int64_t hidden = config.hidden_dim, q = config.n_heads * kHeadDim, kv = q / 2;
    ASSERT_TRUE(activations
                    .Reserve({.hidden = hidden,
                              .qk = q + kv,
                              .v = kv,
                              .q_full = q,
                              .k_full = kv,
                              .attended = q,
                              .mlp_in = config.mlp_rows(),
                              .gated = config.ffn_dim})
                    .ok());
    ASSERT_TRUE(rotations.Extend(cache->n_tokens()).ok());
    sequences.Begin(steps);
  }

  ModelConfig config = SmallConfig(kHeadDim);
  CpuDevice memory;
  CpuResidents residents{&memory};
  LayerWeights weights;
  CacheLayout layout;
  RotationTables rotations{config, &memory};
  Layer layer;
  HostPool pool{std::numeric_limits<int64_t>::max()};
  std::vector<int32_t> ids;
  std::vector<SequenceStep> steps;
  StepSequences sequences;
  Activations activations;
  PlanRecorder backend;
  ForwardProfile profile;
  ForwardState state = {.sequences = &sequences,
                        .activations = &activations,
                        .backend = &backend,
                        .profile = &profile};
};

}  // namespace kvlathe
