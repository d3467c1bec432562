#include "model/steps/normalise.h"

#include "base/clock.h"

namespace kvlathe {

NormPlan NormOf(const ModelConfig& config, const NormWeights& norm, const float* x, int64_t n_rows,
                int64_t n_dims) {
  return {.x = x,
          .n_rows = n_rows,
          .n_dims = n_dims,
          .stride = n_dims,
          .weight = norm.weight.data(),
          .bias = config.norms.kind == NormKind::kRms ? nullptr : norm.bias.data(),
          .eps = config.norms.eps};
}

Status NormaliseStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const ModelConfig& c = *layer_.config;
  NormPlan plan = NormOf(c, norm_, a.hidden.as<float>(), a.n_tokens, c.hidden_dim);
  plan.out_type = a.compute_type;
  plan.out = a.normed.data();
  state->backend->Normalise({&plan, 1});
  return OkStatus();
}

Status NormaliseHeadsStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  float* const q = a.qk.as<float>();
  float* const k = q + int64_t{rows.n_heads} * rows.head_dim;
  const auto plan_of = [&](const NormWeights& norm, float* x, int n_heads) -> NormPlan {
    return {.x = x,
            .n_rows = a.n_tokens,
            .n_groups = n_heads,
            .n_dims = rows.head_dim,
            .stride = rows.QkStride(),
            .weight = norm.weight.data(),
            .eps = layer_.config->norms.eps,
            .out_type = DType::kF32,
            .out = x};
  };
  const NormPlan plans[] = {plan_of(layer_.weights->q_norm, q, rows.n_heads),
                            plan_of(layer_.weights->k_norm, k, rows.n_model_kv_heads())};
  state->backend->Normalise(plans);
  return OkStatus();
}

}  // namespace kvlathe
