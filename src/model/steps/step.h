// One step of a layer.
#pragma once

#include <string_view>

#include "base/status.h"
#include "model/forward.h"
#include "model/layer.h"

namespace kvlathe {

// Made once, when a layer is compiled; keeps the memory of the plans that it makes.
class LayerStep {
 public:
  // `layer` outlives the step.
  explicit LayerStep(const Layer* layer) : layer_(*layer) {}
  virtual ~LayerStep() = default;
  LayerStep(const LayerStep&) = delete;
  LayerStep& operator=(const LayerStep&) = delete;

  virtual std::string_view name() const = 0;
  // For all sequences of the forward. An error concerns all of them; those of a sequence alone go
  // to StepSequences::Fail.
  virtual Status Run(ForwardState* state) = 0;

 protected:
  const Layer& layer_;
};

}  // namespace kvlathe
