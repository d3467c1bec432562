// The feed-forward part of a layer over a whole window of tokens, forwards and back.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "calibration/gradients/experts_pass.h"
#include "calibration/gradients/layer_products.h"
#include "calibration/gradients/row_operators.h"
#include "model/weights.h"

namespace kvlathe {

// An MLP, or in layers that have them a router and experts.
class FeedForwardPass {
 public:
  // All outlive this; rows are those that `products` has room for.
  FeedForwardPass(const ModelWeights* weights, LayerProducts* products,
                  const ElementwiseKernels* kernels);

  Status Prepare();
  // Numbers of the widest rows for a token, and of what is kept of a layer for its way back.
  int64_t WidestRow() const;
  int64_t KeptWidth(int layer_idx) const;
  Status Load(int layer_idx, PassWays ways);

  // Run computes what the part makes of `from` [n_tokens, hidden_dim] in two steps: what is kept of
  // it, and from that and `from` what it puts out. Errors are those of unpacking experts.
  void RunIn(TokenRows* from, TokenRows* kept);
  Status RunOut(TokenRows* from, TokenRows* kept, TokenRows* to);
  // From the gradient with respect to what it put out that with respect to `from`. The layer was
  // loaded for both ways.
  Status RunBack(TokenRows* from, TokenRows* kept, const float* d_to, TokenRows* d_from);
  // Whether the second step and the way back of the loaded layer read `from`.
  bool ReadsAgain() const { return has_experts(layer_idx_); }

 private:
  const LayerWeights& layer() const { return weights_.layer(layer_idx_); }
  bool has_experts(int layer_idx) const { return weights_.config().has_experts(layer_idx); }
  RowGate GateOf() const;

  const ModelWeights& weights_;
  LayerProducts& products_;
  const ElementwiseKernels& kernels_;
  int layer_idx_ = -1;
  LayerMatrix mlp_in_, down_;
  TokenRows gated_, d_gated_, d_up_;
  std::optional<ExpertsPass> experts_;  // where some layer has them
};

}  // namespace kvlathe
