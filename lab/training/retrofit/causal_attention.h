// This causal attention has a gradient of its own, which keeps probabilities and nothing else of
// the size of scores.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace kvlathe {

// What is added to the scores of some columns, and what is measured of them.
struct ColumnEffects {
  // [batch, n_kv_heads, n_tokens], added to the scores of column j in rows i >= j + distance;
  // undefined: nothing is.
  torch::Tensor bias;
  int64_t distance = 1;
  // [batch, n_kv_heads, n_tokens], F32: what the loss would change by without column j, to the
  // first order and squared, is added up here by the backward pass, over the rows i >= j +
  // cost_distance:
  //   sum_i (sum over the group of P_ij / (1 - P_ij) (dP_ij - sum_k P_ik dP_ik))^2
  // since the row's other probabilities grow by 1 / (1 - P_ij). Undefined: nothing is measured.
  torch::Tensor cost;
  int64_t cost_distance = 1;
};

// q [batch, n_kv_heads, group, n_tokens, head_dim], k and v [batch, n_kv_heads, n_tokens,
// head_dim]; the result has q's shape. Query rows go in blocks, so that keys after a block cost
// nothing.
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, const ColumnEffects& effects = {});

}  // namespace kvlathe
