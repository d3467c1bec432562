// The feed-forward part of a layer over a whole window of tokens, forwards and back.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "calibration/gradients/layer_products.h"
#include "calibration/gradients/row_operators.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "model/weights.h"

namespace kvlathe {

class FeedForwardPass {
 public:
  // All outlive this; rows are those that `products` has room for.
  FeedForwardPass(const ModelWeights* weights, LayerProducts* products,
                  const ElementwiseKernels* kernels)
      : weights_(*weights), products_(*products), kernels_(*kernels) {}

  Status Prepare();
  // Numbers of the widest rows for a token, and of what is kept of a layer for its way back.
  int64_t WidestRow() const { return weights_.config().mlp_rows(); }
  int64_t KeptWidth() const { return weights_.config().mlp_rows(); }
  Status Load(int layer_idx, PassWays ways);

  // Run computes what the part makes of `from` [n_tokens, hidden_dim] in two steps: what is kept of
  // it, and from that what it puts out.
  void RunIn(TokenRows* from, TokenRows* kept);
  void RunOut(TokenRows* kept, TokenRows* to);
  // From the gradient with respect to what it put out that with respect to `from`. The layer was
  // loaded for both ways.
  void RunBack(TokenRows* kept, const float* d_to, TokenRows* d_from);

 private:
  const LayerWeights& layer() const { return weights_.layer(layer_idx_); }
  RowGate GateOf() const;

  const ModelWeights& weights_;
  LayerProducts& products_;
  const ElementwiseKernels& kernels_;
  int layer_idx_ = -1;
  LayerMatrix mlp_in_, down_;
  TokenRows gated_, d_gated_, d_up_;
};

}  // namespace kvlathe
