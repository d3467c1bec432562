// Products with the weights of a layer.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// The product of n_rows dense rows x with w, to dense rows y in F32.
LinearParams ProductOf(const PackedMatrix& w, const std::vector<float>& bias, int64_t n_rows,
                       const void* x, void* y);

// Activations::normed to queries, keys and values.
class ProjectStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "project"; }
  Status Run(ForwardState* state) override;
};

// Where heads share latents: of what attention puts out to rows of head_dim.
class ReadOutputsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "read outputs"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<HeadProductsPlan::Head> heads_;
};

// x W^T + bias is added to the residual stream, normalised with `norm` where the model says so.
void AddToStream(const Layer& layer, const PackedMatrix& w, const std::vector<float>& bias,
                 const void* x, const NormWeights& norm, ForwardState* state);

// W_O: what attention put out is added to the residual stream.
class OutputStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "output"; }
  Status Run(ForwardState* state) override;
};

// Activations::normed through the feed-forward part, added to the residual stream.
class FeedForwardStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "feed forward"; }
  Status Run(ForwardState* state) override;
};

}  // namespace kvlathe
