// A MergePass is what the ways of a cache with fewer entries have in common in training: learned
// merging (training/retrofit/merging/dmc_pass.h), pooling (training/retrofit/merging/pool_pass.h)
// and learned eviction (training/retrofit/dms/dms_pass.h), where entries leave and none merge.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "training/retrofit/causal_attention.h"

namespace kvlathe {

// What is added to a score that nothing may be left of: no softmax leaves anything, and no F32
// turns it into infinity.
inline constexpr double kMaskedScore = -50000;

// y_t = sum_{j < window} coefficients_tj x_{t-j}, with x_{t-j} = 0 before the first; x [batch,
// n_heads, n_tokens, n], coefficients [batch, n_heads, n_tokens, window].
torch::Tensor WindowedSum(const torch::Tensor& x, const torch::Tensor& coefficients);
// The same by tensor operations, on any device.
torch::Tensor WindowedSumByOperations(const torch::Tensor& x, const torch::Tensor& coefficients);

// The normalised coefficients C_t,t-j / sum_j C_t,t-j of alpha and omega [batch, n_heads,
// n_tokens].
torch::Tensor MergeCoefficients(const torch::Tensor& alpha, const torch::Tensor& omega, int window);

// One forward pass through all layers. A new one is made for each.
class MergePass {
 public:
  struct Merged {
    torch::Tensor q, k, v;  // shapes and types of what came in
    ColumnEffects effects;  // none where nothing merges and nothing leaves
  };

  virtual ~MergePass() = default;
  // The residual stream [batch, n_tokens, hidden] that a layer reads, before its norm; each layer
  // begins with this.
  virtual void Observe(const torch::Tensor& /*residual*/) {}
  // q [batch, n_tokens, n_heads, head_dim], k and v [batch, n_tokens, n_kv_heads, head_dim] before
  // RoPE; layers are called in order.
  virtual Merged Merge(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) = 0;
  // What queries and keys [..., head_dim] become behind RoPE.
  virtual torch::Tensor AfterRope(const torch::Tensor& qk) const { return qk; }
  // Where positions decide: alpha of every layer, [n_layers, batch, n_kv_heads, n_tokens];
  // elsewhere undefined.
  virtual torch::Tensor Alpha() const { return {}; }
};

// k and v [batch, n_tokens, n_kv_heads, head_dim] in place, as means of the newest `window`
// positions (MergeCoefficients).
void MergeRows(const torch::Tensor& alpha, const torch::Tensor& omega, int window, torch::Tensor* k,
               torch::Tensor* v);

}  // namespace kvlathe
