#include "training/retrofit/dmc_pass.h"

#include <torch/autograd.h>

#include <algorithm>

#include "base/random.h"

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What no softmax leaves anything of, and no F32 turns into infinity.
constexpr double kMasked = -50000;

// Keeps x and the coefficients; single operations would keep x once for every place of the window.
struct WindowedSumFunction : torch::autograd::Function<WindowedSumFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& coefficients) {
    context->save_for_backward({x, coefficients});
    Tensor y = x * coefficients.narrow(3, 0, 1);
    const int64_t n_tokens = x.size(2);
    for (int64_t j = 1; j < std::min(coefficients.size(3), n_tokens); ++j) {
      const int64_t n = n_tokens - j;
      y.narrow(2, j, n).addcmul_(coefficients.narrow(3, j, 1).narrow(2, j, n), x.narrow(2, 0, n));
    }
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &coefficients = saved[1], &dy = grads[0];
    Tensor dx = dy * coefficients.narrow(3, 0, 1);
    Tensor d_coefficients = torch::zeros_like(coefficients);
    d_coefficients.select(3, 0).copy_((dy * x).sum(-1));
    const int64_t n_tokens = x.size(2);
    for (int64_t j = 1; j < std::min(coefficients.size(3), n_tokens); ++j) {
      const int64_t n = n_tokens - j;
      const Tensor dy_late = dy.narrow(2, j, n);
      dx.narrow(2, 0, n).addcmul_(coefficients.narrow(3, j, 1).narrow(2, j, n), dy_late);
      d_coefficients.select(3, j).narrow(2, j, n).copy_((dy_late * x.narrow(2, 0, n)).sum(-1));
    }
    return {dx, d_coefficients};
  }
};

// x_{t-j} in place of x_t, 0 before the first. The last dimension is positions.
Tensor Later(const Tensor& x, int64_t j) {
  const int64_t n = x.size(-1);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = std::min(j, n);
  const Tensor front = torch::zeros(shape, x.options());
  return j >= n ? front : torch::cat({front, x.narrow(-1, 0, n - j)}, -1);
}

// The gradient of `soft`, the value of its rounding.
Tensor StraightThrough(const Tensor& soft) { return soft + (soft.round() - soft).detach(); }

}  // namespace

Tensor ScaleChannel(const Tensor& x, int64_t channel, double scale) {
  Tensor factors = torch::ones({x.size(-1)}, x.options().requires_grad(false));
  factors[channel] = scale;
  return x * factors;
}

Tensor WindowedSum(const Tensor& x, const Tensor& coefficients) {
  return WindowedSumFunction::apply(x, coefficients);
}

Tensor MergeCoefficients(const Tensor& alpha, const Tensor& omega, int window) {
  std::vector<Tensor> columns = {omega};
  Tensor joined = torch::ones_like(alpha);  // alpha_{t-j+1} .. alpha_t
  for (int64_t j = 1; j < window; ++j) {
    joined = joined * Later(alpha, j - 1);
    columns.push_back(joined * Later(omega, j));
  }
  const Tensor coefficients = torch::stack(columns, -1);
  return coefficients / coefficients.sum(-1, true);
}

// The difference of two Gumbel variables is logistic. It is drawn on the CPU, so that it is the
// same on every device.
Tensor DmcPass::Noise(const Tensor& like) const {
  auto generator = at::detail::createCPUGenerator(
      MixBits(options_.noise_seed ^ MixBits(static_cast<uint64_t>(alpha_.size()))));
  const Tensor u = torch::rand(like.sizes(), generator, torch::kDouble).clamp(1e-12, 1 - 1e-12);
  return (torch::log(u) - torch::log1p(-u)).to(like.options());
}

DmcPass::Merged DmcPass::Merge(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t head_dim = k.size(3), c = Channel(head_dim);
  Merged merged{ScaleChannel(q, c, options_.channel_scale),
                ScaleChannel(k, c, options_.channel_scale),
                v,
                {}};
  if (!options_.merges) return merged;
  const auto wide = k.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const int64_t batch = k.size(0), n_tokens = k.size(1), n_kv_heads = k.size(2);
  // [batch, n_kv_heads, n_tokens]
  Tensor logit = k.select(3, c).to(wide).transpose(1, 2) - config_.offset;
  Tensor weight = q.select(3, c).to(wide).view({batch, n_tokens, n_kv_heads, -1}).mean(-1);
  weight = weight.transpose(1, 2);
  if (options_.variant.shares_decisions) {
    logit = logit.mean(1, true).expand_as(logit);
    weight = weight.mean(1, true).expand_as(weight);
  }
  if (options_.variant.uniform_weights) weight = torch::zeros_like(weight);
  const Tensor omega = torch::sigmoid(weight + config_.weight_offset) + config_.epsilon;
  const bool is_hard = options_.decisions == DmcDecisions::kHard;
  const Tensor x = is_hard ? logit : (logit + Noise(logit)) / options_.temperature;
  // The first position begins an entry whatever it says.
  const Tensor is_behind = torch::arange(n_tokens, logit.device()).gt(0).to(wide);
  const Tensor alpha = (is_hard ? x.gt(0).to(wide) : torch::sigmoid(x)) * is_behind;
  const Tensor coefficients = MergeCoefficients(alpha, omega, options_.window);
  const Tensor rows = torch::cat({merged.k, v}, -1).to(wide).transpose(1, 2).contiguous();
  const Tensor means = WindowedSum(rows, coefficients).transpose(1, 2).to(k.scalar_type());
  merged.k = means.narrow(3, 0, head_dim);
  merged.v = means.narrow(3, head_dim, v.size(3));
  // log(1 - alpha_{j+1}), exactly where alpha is close to 1.
  const Tensor next = x.narrow(2, 1, n_tokens - 1);
  const Tensor hidden = is_hard ? next.gt(0).to(wide) * kMasked : torch::log_sigmoid(-next);
  merged.column_bias = torch::cat({hidden, torch::zeros_like(logit.narrow(2, 0, 1))}, 2);
  alpha_.push_back(alpha);
  return merged;
}

Tensor DmcLoss(const Tensor& alpha, const DmcLossOptions& options) {
  const Tensor kept = 1 - (options.hinge == DmcHinge::kSequence ? StraightThrough(alpha) : alpha);
  Tensor share;  // of the positions that begin an entry
  switch (options.hinge) {
    case DmcHinge::kGlobal:
      share = kept.mean();
      break;
    case DmcHinge::kLayer:
      share = kept.mean({1, 2, 3});
      break;
    case DmcHinge::kSequence:
      share = kept.mean({0, 2, 3});
      break;
  }
  Tensor loss = torch::relu(share - 1 / options.cr).mean();
  if (options.is_consistent) loss = loss + (alpha - alpha.mean(2, true)).abs().mean();
  return loss;
}

}  // namespace kvlathe
