// Multiplies rows with the weights of a layer.
#pragma once

#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Plans the product of n_rows dense rows x of x_type with w, into dense rows y in F32.
ProductPlan ProductOf(const Weight& w, const FloatTable& bias, int64_t n_rows, const ObjectPlace& x,
                      DType x_type, const ObjectPlace& y);

// Multiplies Activations::normed to queries, keys and values.
class ProjectStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "project"; }
  Status Run(ForwardState* state) override;
};

// Where heads share latents, makes rows of head_dim numbers of what attention puts out.
class ReadOutputsStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "read outputs"; }
  Status Run(ForwardState* state) override;

 private:
  std::vector<HeadProductsPlan::Head> heads_;
};

// What a product adds to the residual stream.
struct StreamProduct {
  const Weight& w;
  const FloatTable& bias;
  ObjectPlace x;
  const NormWeights& norm;
  // Where a layer is parted among ranks and its products are summed together (a parallel block):
  // whether this one begins the sum, and whether it ends it.
  bool begins_sum = true;
  bool ends_sum = true;
};

// What stands between the two products of the model's feed-forward parts.
GateKind GateOf(MlpKind mlp);

// Ends a sum that was made in Activations::added, over the ranks that hold parts of the layer, and
// adds it to the residual stream, normalised with `norm` first if the model says so.
void AddSumToStream(const Layer& layer, const NormWeights& norm, ForwardState* state);

// Adds x W^T + bias to the residual stream, summed over the ranks that hold parts of W and
// normalised with `norm` first if the model says so.
void AddToStream(const Layer& layer, const StreamProduct& product, ForwardState* state);

// Multiplies what attention put out with W_O and adds it to the residual stream.
class OutputStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "output"; }
  Status Run(ForwardState* state) override;
};

// Puts Activations::normed through the feed-forward part and adds the result to the residual
// stream.
class FeedForwardStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "feed forward"; }
  Status Run(ForwardState* state) override;
};

}  // namespace kvlathe
