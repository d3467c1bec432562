// One step of a layer.
#pragma once

#include <string_view>

#include "base/status.h"
#include "model/forward.h"
#include "model/layer.h"

namespace kvlathe {

// A step is made once, when its layer is compiled, and keeps the memory of the plans that it makes.
class LayerStep {
 public:
  // `layer` outlives the step.
  explicit LayerStep(const Layer* layer) : layer_(*layer) {}
  virtual ~LayerStep() = default;
  LayerStep(const LayerStep&) = delete;
  LayerStep& operator=(const LayerStep&) = delete;

  virtual std::string_view name() const = 0;
  // Runs the step for all sequences of the forward. An error that is returned concerns all of them;
  // an error of one sequence goes to StepSequences::Fail.
  virtual Status Run(ForwardState* state) = 0;

 protected:
  const Layer& layer_;
};

}  // namespace kvlathe
