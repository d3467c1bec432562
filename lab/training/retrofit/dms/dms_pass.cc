#include "training/retrofit/dms/dms_pass.h"

#include <algorithm>

#include "base/random.h"

namespace kvlathe {

using torch::Tensor;

Tensor DmsLogits(const DmsHead& head, const Tensor& residual, const DmsRecipe& recipe,
                 double norm_epsilon) {
  const int64_t hidden = residual.size(2);
  const Tensor normed =
      RmsNorm(residual.reshape({-1, hidden}), head.norm, norm_epsilon, head.weight.scalar_type());
  const Tensor projected = torch::addmm(head.bias, normed, head.weight.t());
  return (projected * recipe.scale - recipe.offset)
      .view({residual.size(0), residual.size(1), -1})
      .transpose(1, 2);
}

// The difference of two Gumbel variables is logistic. It is drawn on the CPU, so that it is the
// same on every device.
Tensor DmsPass::Noise(const Tensor& like) const {
  auto generator = at::detail::createCPUGenerator(
      MixBits(options_.noise_seed ^ MixBits(static_cast<uint64_t>(n_layers_))));
  const Tensor u = torch::rand(like.sizes(), generator, torch::kDouble).clamp(1e-12, 1 - 1e-12);
  return (torch::log(u) - torch::log1p(-u)).to(like.options());
}

void DmsPass::Observe(const Tensor& residual) {
  const Tensor logit = DmsLogits(heads_[n_layers_], residual, recipe_, options_.norm_epsilon);
  const int64_t n_tokens = logit.size(2);
  const int64_t n_sink = std::min<int64_t>(n_tokens, recipe_.n_sink);
  // Of the positions behind the sinks and before the last, which nothing decides on yet.
  const int64_t n_decided = std::max<int64_t>(0, n_tokens - n_sink - 1);
  const Tensor next = logit.narrow(2, n_tokens - n_decided, n_decided);
  const Tensor z = options_.is_hard ? next : (next + Noise(next)) / recipe_.temperature;
  const Tensor hidden =
      options_.is_hard ? z.gt(0).to(z.scalar_type()) * kMaskedScore : torch::log_sigmoid(-z);
  bias_ = torch::constant_pad_nd(hidden, {n_sink, n_tokens - n_sink - n_decided});
  const int64_t n_far = n_tokens - recipe_.window - n_sink;
  if (n_far > 0) {
    const Tensor far = z.narrow(2, 0, n_far);
    alpha_.push_back(options_.is_hard ? far.gt(0).to(far.scalar_type()) : torch::sigmoid(far));
  }
  ++n_layers_;
}

MergePass::Merged DmsPass::Merge(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {q, k, v, {.bias = bias_, .distance = recipe_.window}};
}

Tensor DmsPass::Alpha() const { return alpha_.empty() ? Tensor() : torch::stack(alpha_); }

}  // namespace kvlathe
