// Shows the rows of a layer to whoever gathers statistics.
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Shows queries and keys before and after RoPE, and values, as F32: where positions merge, those of
// their entries so far. It costs nothing if there is no observer.
class ObserveStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "observe"; }
  Status Run(ForwardState* state) override;

 private:
  void FindEntries(const Activations& a);
  // Queries and keys [n_tokens, QkStride()] at their positions.
  StatusOr<std::vector<float>> TurnedRows(const std::vector<float>& qk, ForwardState* state);

  std::vector<HeadTurn> heads_;
  std::vector<uint8_t> is_entry_;  // [n_kv_heads, n_tokens]
};

// Shows what attention made of values, as F32, to an observer that wants it.
class ObserveOutputsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "observe outputs"; }
  Status Run(ForwardState* state) override;
};

}  // namespace kvlathe
