// Decides which positions become one entry, and with what weights (DMC, docs/methods/dmc.md; and
// fixed pooling). The backend takes the means (format/open_entry.h).
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// For a model with DMC: moves the deciding channels of queries and keys to Activations::decisions;
// they are zero from here on.
class TakeDecisionsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "take decisions"; }
  Status Run(ForwardState* state) override;
};

// Replaces keys before RoPE and values by the mean of their entry so far, and sets
// Activations::n_closed.
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
