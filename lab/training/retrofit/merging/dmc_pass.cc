#include "training/retrofit/merging/dmc_pass.h"

#include <torch/autograd.h>

#include "base/random.h"

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A copy with one channel changed; a product with factors that are mostly 1 is slow in BF16.
struct ScaleChannelFunction : torch::autograd::Function<ScaleChannelFunction> {
  static Tensor Scaled(const Tensor& x, int64_t channel, double scale) {
    Tensor y = x.clone();
    y.select(-1, channel).mul_(scale);
    return y;
  }
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t channel, double scale) {
    context->saved_data["channel"] = channel;
    context->saved_data["scale"] = scale;
    return Scaled(x, channel, scale);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {Scaled(grads[0], context->saved_data["channel"].toInt(),
                   context->saved_data["scale"].toDouble()),
            Tensor(), Tensor()};
  }
};

// The gradient of `soft`, the value of its rounding.
Tensor StraightThrough(const Tensor& soft) { return soft + (soft.round() - soft).detach(); }

}  // namespace

Tensor ScaleChannel(const Tensor& x, int64_t channel, double scale) {
  return ScaleChannelFunction::apply(x, channel, scale);
}

// The difference of two Gumbel variables is logistic. It is drawn on the CPU, so that it is the
// same on every device.
Tensor DmcPass::Noise(const Tensor& like) const {
  auto generator = at::detail::createCPUGenerator(
      MixBits(options_.noise_seed ^ MixBits(static_cast<uint64_t>(alpha_.size()))));
  const Tensor u = torch::rand(like.sizes(), generator, torch::kDouble).clamp(1e-12, 1 - 1e-12);
  return (torch::log(u) - torch::log1p(-u)).to(like.options());
}

MergePass::Merged DmcPass::Merge(const Tensor& q, const Tensor& k, const Tensor& v) {
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
  MergeRows(alpha, omega, options_.window, &merged.k, &merged.v);
  // log(1 - alpha_{j+1}), exactly where alpha is close to 1.
  const Tensor next = x.narrow(2, 1, n_tokens - 1);
  const Tensor hidden = is_hard ? next.gt(0).to(wide) * kMaskedScore : torch::log_sigmoid(-next);
  merged.effects.bias = torch::cat({hidden, torch::zeros_like(logit.narrow(2, 0, 1))}, 2);
  alpha_.push_back(alpha);
  return merged;
}

Tensor DmcPass::AfterRope(const Tensor& qk) const {
  if (!config_.zeroes_after_rope || options_.channel_scale == 1) return qk;
  return ScaleChannel(qk, Channel(qk.size(-1)), options_.channel_scale);
}

Tensor DmcPass::Alpha() const { return alpha_.empty() ? Tensor() : torch::stack(alpha_); }

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
  Tensor loss = torch::relu(share - 1 / options.cr).mean() * options.hinge_weight;
  if (options.is_consistent) loss = loss + (alpha - alpha.mean(2, true)).abs().mean();
  return loss;
}

}  // namespace kvlathe
