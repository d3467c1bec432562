// Normalises the residual stream, and queries and keys.
#pragma once

#include "model/steps/step.h"

namespace kvlathe {

// Plans a norm of dense rows of n_dims numbers, of the kind that the model has. The caller fills in
// where the results go.
NormPlan NormOf(const ModelConfig& config, const NormWeights& norm, const ObjectPlace& x,
                int64_t n_rows, int64_t n_dims);

NormFunction FunctionOf(NormKind kind);

// Normalises the residual stream into Activations::normed.
class NormaliseStep : public LayerStep {
 public:
  // `norm` outlives the step. With `is_bare` there is none: the stream is only converted. With
  // `routes` the rows also go to Activations::routed_by, if their own type is not its.
  NormaliseStep(const Layer* layer, const NormWeights* norm, bool is_bare, bool routes = false)
      : LayerStep(layer), norm_(*norm), is_bare_(is_bare), routes_(routes) {}
  std::string_view name() const override { return "normalise"; }
  Status Run(ForwardState* state) override;

 private:
  const NormWeights& norm_;
  bool is_bare_;
  bool routes_;
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
