// Tests of requests share this small random model.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "analysis/bases/basis.h"
#include "base/random.h"
#include "engine/engine.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/config.h"
#include "model/planned_model.h"
#include "model/small_config.h"

namespace kvlathe {

// The small model, wider.
inline ModelConfig WideConfig(int head_dim) {
  ModelConfig c = SmallConfig(head_dim);
  c.hidden_dim = 128;
  c.ffn_dim = 352;
  c.max_seq_len = 1024;
  return c;
}

// Keys that lose half of their dimensions, as fdc cuts them; the maps are random. Where the spec
// splits bits, all channels of a head have the same; where its keys lose a mean, it is random too.
inline ModelBasis HalfRankBasis(const ModelConfig& c, const Spec& spec) {
  const bool splits_bits = FactsOf(spec.sealing()).splits_bits;
  Random random(17);
  const auto matrix = [&](int n_rows, int n_columns) {
    std::vector<float> m(int64_t{n_rows} * n_columns);
    for (float& v : m) v = static_cast<float>(random.Normal() / std::sqrt(c.head_dim));
    return m;
  };
  ModelBasis basis{c.n_layers, c.n_kv_heads, c.head_dim, {}};
  const bool lose_mean = spec.key_rows() == KeyRows::kCentred;
  if (lose_mean) basis.keys = MappedKeys{.turning_pairs = MostTurningPairs(c.rope_dim())};
  const bool joins_values = JoinsValues(spec.keys());
  if (joins_values) {
    basis.keys = MappedKeys{
        .has_frames = true, .turning_pairs = MostTurningPairs(c.rope_dim()), .joins_values = true};
  }
  for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
    HeadBasis head{.rank_k = 16, .rank_v = i % 2 == 0 ? 16 : 32};
    if (joins_values) {
      head.rank_k = head.rank_v;
      head.turning_mean = matrix(1, c.head_dim);
    }
    head.query_basis = matrix(c.head_dim, head.rank_k);
    head.key_basis = matrix(c.head_dim, head.rank_k);
    head.value_basis = matrix(c.head_dim, head.rank_v);
    head.output_basis = matrix(head.rank_v, c.head_dim);
    if (lose_mean) head.turning_mean = matrix(1, c.head_dim);
    if (splits_bits) {
      head.bits.middle.k.channels[2] = head.rank_k;  // 4 bits
      if (!joins_values) head.bits.middle.v.channels[3] = head.rank_v;
      if (spec.basis_as<LatheOptions>()->under_pressure > 0) {
        head.bits.pressed.k.channels[4] = 16;  // 2 bits
        if (!joins_values) head.bits.pressed.v.channels[5] = 16;
      }
    }
    basis.heads.push_back(std::move(head));
  }
  return basis;
}

// A deterministic model of these weights with the cache of a spec, 4 sinks and, where the spec
// splits bits, the maps of HalfRankBasis.
inline std::unique_ptr<Model> MakeSmallModel(std::shared_ptr<ModelWeights> weights,
                                             const std::string& text) {
  const Spec spec = *Spec::Parse(text);
  const ModelBasis basis = HalfRankBasis(weights->config(), spec);
  PlanParts parts = PartsOf(spec, FactsOf(spec.sealing()).splits_bits ? &basis : nullptr);
  parts.n_sink = 4;
  auto model = CreateModel(std::move(weights), std::move(parts));
  EXPECT_TRUE(model.ok()) << model.status();
  (*model)->set_deterministic(true);
  return *std::move(model);
}

// A prompt of random tokens below n_tokens, which depend on its length and the seed.
inline std::vector<int32_t> RandomPrompt(int n_prompt, uint64_t seed,
                                         int n_tokens = kSmallVocabulary) {
  std::vector<int32_t> prompt;
  Random random(seed * 1000 + n_prompt);
  for (int i = 0; i < n_prompt; ++i) prompt.push_back(random.Below(n_tokens));
  return prompt;
}

// What one request saw and gave.
struct Trace {
  RequestOutcome outcome;
  std::vector<std::vector<float>> logits;  // behind each token

  bool operator==(const Trace& other) const {
    return outcome.tokens == other.outcome.tokens && logits == other.logits &&
           outcome.kv_bytes.total() == other.outcome.kv_bytes.total();
  }
};

// Runs requests that name no stop ids together to their end, under a budget of bytes that the peak
// does not exceed.
inline std::vector<Trace> RunRequests(Model* model, const std::vector<Request>& requests,
                                      int64_t budget, const EngineOptions& options) {
  HostPool pool(budget);
  std::vector<Trace> traces(requests.size());
  {
    Engine engine({model}, &pool, options);
    int row = 0;  // of the step's logits: without stop ids every row gives a token
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Submit(
          requests[i],
          [&, i](auto, const GeneratedToken&) {
            const std::span<const float> logits = model->logits(row++);
            traces[i].logits.emplace_back(logits.begin(), logits.end());
            return FinishReason::kNone;
          },
          [&, i](auto, const RequestOutcome& o) { traces[i].outcome = o; });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    while (engine.Step()) row = 0;
    for (const Trace& trace : traces)
      EXPECT_TRUE(trace.outcome.status.ok()) << trace.outcome.status;
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_LE(pool.usage().peak_bytes, budget);
  return traces;
}

}  // namespace kvlathe
