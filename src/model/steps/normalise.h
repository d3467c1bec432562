// Normalises the residual stream, and queries and keys.
#pragma once

#include "model/steps/step.h"

namespace kvlathe {

// Plans a norm of dense rows of n_dims numbers, of the kind that the model has. The caller fills in
// where the results go.
NormPlan NormOf(const ModelConfig& config, const NormWeights& norm, const ObjectPlace& x,
                int64_t n_rows, int64_t n_dims);

// Normalises the residual stream into Activations::normed.
class NormaliseStep : public LayerStep {
 public:
  // `norm` outlives the step.
  NormaliseStep(const Layer* layer, const NormWeights* norm) : LayerStep(layer), norm_(*norm) {}
  std::string_view name() const override { return "normalise"; }
  Status Run(ForwardState* state) override;

 private:
  const NormWeights& norm_;
};

// Normalises every head's rows of queries and keys in place, before anything else sees them (Qwen3,
// Gemma 3).
class NormaliseHeadsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "normalise heads"; }
  Status Run(ForwardState* state) override;
};

}  // namespace kvlathe
