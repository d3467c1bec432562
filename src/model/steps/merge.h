// Where positions become entries of several (DMC, docs/methods/dmc.md; and fixed pooling): who
// joins, and with what weight. The means are the backend's (kv/retention/merge.h).
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Of a model with DMC: the deciding channels of queries and keys go to Activations::decisions and
// are zero from here on.
class TakeDecisionsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "take decisions"; }
  Status Run(ForwardState* state) override;
};

// Keys before RoPE and values become the mean of their entry so far; Activations::n_closed is set.
class MergeStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "merge"; }
  Status Run(ForwardState* state) override;

 private:
  bool Joins(const Activations& a, int kv_head_idx, int64_t row) const;
  float WeightOf(const Activations& a, int kv_head_idx, int64_t row) const;

  std::vector<uint8_t> joins_;  // [n_kv_heads, n_tokens]
  std::vector<float> weights_;  // the same
  std::vector<MergeItem> items_;
};

}  // namespace kvlathe
