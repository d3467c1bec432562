#include "training/retrofit/causal_attention.h"

#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowBlock = 256;

// Heads are a batch: q and the result [n_heads, group, n_tokens, head_dim], k and v [n_heads,
// n_tokens, head_dim], bias [n_heads, n_tokens], or empty where there is none. Rows [begin, begin +
// n) attend to the keys [0, begin + n).
struct RowBlock {
  int64_t begin, n;

  int64_t n_keys() const { return begin + n; }
  // [n_heads, group * n, head_dim] of x like q.
  Tensor Rows(const Tensor& x) const {
    return x.narrow(2, begin, n).reshape({x.size(0), x.size(1) * n, x.size(3)});
  }
  Tensor Keys(const Tensor& x) const { return x.narrow(1, 0, n_keys()); }
};

// The columns j of a block that some row i >= j + distance has: those of all rows come first, then
// those of a part of them.
struct FarColumns {
  FarColumns(const RowBlock& block, int64_t distance)
      : n_whole(std::max<int64_t>(0, block.begin - distance + 1)),
        n_partial(std::max<int64_t>(0, block.n_keys() - distance - n_whole)),
        n_rows(block.n),
        diagonal(block.begin - distance - n_whole) {}

  // [n_rows, n_partial], 1 where the row is so far from the column.
  Tensor IsFar(const torch::TensorOptions& options) const {
    return torch::ones({n_rows, n_partial}, options).tril(diagonal);
  }
  // y[..., j] += sum over group and those rows of x [n_heads, group, n_rows, n_keys].
  void AddRows(const Tensor& x, Tensor y) const {
    const auto wide = y.scalar_type();
    if (n_whole > 0) y.narrow(1, 0, n_whole).add_(x.narrow(3, 0, n_whole).sum({1, 2}, false, wide));
    if (n_partial == 0) return;
    const Tensor partial = x.narrow(3, n_whole, n_partial) * IsFar(x.options());
    y.narrow(1, n_whole, n_partial).add_(partial.sum({1, 2}, false, wide));
  }

  int64_t n_whole, n_partial, n_rows, diagonal;
};

std::vector<RowBlock> BlocksOf(int64_t n_tokens) {
  std::vector<RowBlock> blocks;
  for (int64_t begin = 0; begin < n_tokens; begin += kRowBlock) {
    blocks.push_back({begin, std::min(kRowBlock, n_tokens - begin)});
  }
  return blocks;
}

// softmax(q k^T + bias) of a block, [n_heads, group * n, n_keys] in the type of q. The products are
// added to what a score has besides, so that it is passed over once: element-wise operations on
// BF16 are not vectorised.
Tensor Probabilities(const RowBlock& block, const Tensor& q, const Tensor& k, const Tensor& bias,
                     int64_t distance) {
  const int64_t n_heads = q.size(0), group = q.size(1), n = block.n;
  Tensor scores = torch::zeros({n_heads, group, n, block.n_keys()}, q.options());
  if (bias.numel() > 0) {
    const FarColumns far(block, distance);
    const Tensor of_columns = bias.view({n_heads, 1, 1, bias.size(1)});
    scores.narrow(3, 0, far.n_whole).copy_(of_columns.narrow(3, 0, far.n_whole));
    if (far.n_partial > 0) {
      scores.narrow(3, far.n_whole, far.n_partial)
          .copy_(of_columns.narrow(3, far.n_whole, far.n_partial) * far.IsFar(bias.options()));
    }
  }
  const Tensor future =
      torch::ones({n, n}, torch::TensorOptions().device(q.device()).dtype(torch::kBool)).triu(1);
  scores.narrow(3, block.begin, n).masked_fill_(future, -std::numeric_limits<double>::infinity());
  scores = scores.view({n_heads, group * n, block.n_keys()});
  return torch::softmax(scores.baddbmm_(block.Rows(q), block.Keys(k).transpose(1, 2)), -1);
}

// What the columns of a block would cost, as of ColumnEffects::cost.
Tensor RemovalCosts(const Tensor& probs, const Tensor& d_scores) {
  // A row that sees little else would grow without bound.
  constexpr double kLeast = 0.05;
  const Tensor rest = (1 - probs.to(torch::kFloat)).clamp_min_(kLeast);
  return d_scores.to(torch::kFloat).div_(rest);
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& bias, const ColumnEffects& effects) {
    Tensor out = torch::empty_like(q);
    variable_list saved = {q, k, v};
    for (const RowBlock& block : BlocksOf(q.size(2))) {
      const Tensor probs = Probabilities(block, q, k, bias, effects.distance);
      out.narrow(2, block.begin, block.n)
          .copy_(torch::bmm(probs, block.Keys(v)).view({q.size(0), q.size(1), block.n, q.size(3)}));
      saved.push_back(probs);
    }
    context->save_for_backward(saved);
    context->saved_data["has_bias"] = bias.numel() > 0;
    context->saved_data["bias_type"] = static_cast<int64_t>(bias.scalar_type());
    context->saved_data["distance"] = effects.distance;
    context->saved_data["cost"] = effects.cost;
    context->saved_data["cost_distance"] = effects.cost_distance;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], d_out = grads[0].contiguous();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const Tensor cost = context->saved_data["cost"].toTensor();
    const auto wide = q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    Tensor dq = torch::empty_like(q);
    // Blocks are added up, which BF16 would round each time.
    Tensor dk = torch::zeros(k.sizes(), k.options().dtype(wide)), dv = torch::zeros_like(dk);
    Tensor d_bias = has_bias ? torch::zeros({k.size(0), k.size(1)}, dk.options()) : Tensor();
    const std::vector<RowBlock> blocks = BlocksOf(q.size(2));
    for (size_t i = 0; i < blocks.size(); ++i) {
      const RowBlock& block = blocks[i];
      const Tensor& probs = saved[3 + i];
      const Tensor d_rows = block.Rows(d_out);
      block.Keys(dv).add_(torch::bmm(probs.transpose(1, 2), d_rows));
      const Tensor d_scores = at::_softmax_backward_data(
          torch::bmm(d_rows, block.Keys(v).transpose(1, 2)), probs, -1, probs.scalar_type());
      dq.narrow(2, block.begin, block.n)
          .copy_(
              torch::bmm(d_scores, block.Keys(k)).view({q.size(0), q.size(1), block.n, q.size(3)}));
      block.Keys(dk).add_(torch::bmm(d_scores.transpose(1, 2), block.Rows(q)));
      const std::vector<int64_t> by_row = {q.size(0), q.size(1), block.n, block.n_keys()};
      if (cost.defined()) {
        FarColumns(block, context->saved_data["cost_distance"].toInt())
            .AddRows(RemovalCosts(probs, d_scores).view(by_row).sum(1, true).square_(),
                     cost.view({k.size(0), k.size(1)}));
      }
      if (!has_bias) continue;
      FarColumns(block, context->saved_data["distance"].toInt())
          .AddRows(d_scores.view(by_row), d_bias);
    }
    if (has_bias) {
      d_bias = d_bias.to(static_cast<torch::ScalarType>(context->saved_data["bias_type"].toInt()));
    }
    return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type()), d_bias, Tensor()};
  }
};

}  // namespace

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const ColumnEffects& effects) {
  const int64_t n_heads = q.size(0) * q.size(1), group = q.size(2), n_tokens = q.size(3);
  const Tensor scaled = q * (1 / std::sqrt(static_cast<double>(q.size(4))));
  // A function takes no tensor that is undefined.
  const Tensor bias = effects.bias.defined()
                          ? effects.bias.reshape({n_heads, n_tokens}).contiguous()
                          : torch::empty({0}, q.options());
  return AttentionFunction::apply(scaled.reshape({n_heads, group, n_tokens, q.size(4)}),
                                  k.reshape({n_heads, n_tokens, k.size(3)}),
                                  v.reshape({n_heads, n_tokens, v.size(3)}), bias, effects)
      .view(q.sizes());
}

}  // namespace kvlathe
