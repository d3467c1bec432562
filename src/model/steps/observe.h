// Shows the rows of a layer to whoever gathers statistics.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Shows queries and keys before and after RoPE, and values, as F32. It costs nothing if there is no
// observer.
class ObserveStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "observe"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<HeadTurn> heads_;
};

}  // namespace kvlathe
