// This causal attention has a gradient of its own, which keeps probabilities and nothing else of
// the size of scores.
#pragma once

#include <torch/types.h>

namespace kvlathe {

// q [batch, n_kv_heads, group, n_tokens, head_dim], k and v [batch, n_kv_heads, n_tokens,
// head_dim]; the result has q's shape. Query rows go in blocks, so that keys after a block cost
// nothing. column_bias [batch, n_kv_heads, n_tokens], if it is defined, is added to the scores of
// column j in rows i > j.
torch::Tensor CausalAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, const torch::Tensor& column_bias = {});

}  // namespace kvlathe
