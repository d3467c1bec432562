// Maps values to the basis of the cache where no weights do.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Multiplies the rows of Activations::values with the maps of their heads, into Activations::v.
// Offsets of values have been taken off.
class MapValuesStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "map values"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<HeadProductsPlan::Head> heads_;
};

}  // namespace kvlathe
