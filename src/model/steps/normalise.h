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
  // `norm` outlives the step. With `is_bare` there is none: the stream is only converted.
  NormaliseStep(const Layer* layer, const NormWeights* norm, bool is_bare)
      : LayerStep(layer), norm_(*norm), is_bare_(is_bare) {}
  std::string_view name() const override { return "normalise"; }
  Status Run(ForwardState* state) override;

 private:
  const NormWeights& norm_;
  bool is_bare_;
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
