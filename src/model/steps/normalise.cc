#include "model/steps/normalise.h"

#include "base/clock.h"

namespace kvlathe {

NormPlan NormOf(const ModelConfig& config, const NormWeights& norm, const ObjectPlace& x,
                int64_t n_rows, int64_t n_dims) {
  return {.x = x,
          .n_rows = n_rows,
          .n_dims = n_dims,
          .stride = n_dims,
          .weight = norm.weight.place(),
          .bias = config.norms.kind == NormKind::kRms ? ObjectPlace() : norm.bias.place(),
          .eps = config.norms.eps};
}

Status NormaliseStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const ModelConfig& c = *layer_.config;
  NormPlan plan = NormOf(c, norm_, a.hidden.place(), a.n_tokens, c.hidden_dim);
  plan.out_type = a.types.activations;
  plan.out = a.normed.place();
  state->backend->Normalise({&plan, 1});
  return OkStatus();
}

Status NormaliseHeadsStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const ObjectPlace q = a.qk.place();
  const ObjectPlace k = q + int64_t{rows.n_heads} * rows.head_dim * int64_t{sizeof(float)};
  const auto plan_of = [&](const NormWeights& norm, const ObjectPlace& x, int n_heads) -> NormPlan {
    return {.x = x,
            .n_rows = a.n_tokens,
            .n_groups = n_heads,
            .n_dims = rows.head_dim,
            .stride = rows.QkStride(),
            .weight = norm.weight.place(),
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
