#include "model/steps/normalise.h"

#include "base/clock.h"

namespace kvlathe {

NormFunction FunctionOf(NormKind kind) {
  return kind == NormKind::kRms ? NormFunction::kRms : NormFunction::kLayer;
}

NormPlan NormOf(const ModelConfig& config, const NormWeights& norm, const ObjectPlace& x,
                int64_t n_rows, int64_t n_dims) {
  return {.function = FunctionOf(config.norms.kind),
          .x = x,
          .n_rows = n_rows,
          .n_dims = n_dims,
          .stride = n_dims,
          .weight = norm.weight.place(),
          .bias = norm.bias.place(),
          .eps = config.norms.eps};
}

Status NormaliseStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const ModelConfig& c = *layer_.config;
  NormPlan plan = NormOf(c, norm_, a.hidden.place(), a.n_tokens, c.hidden_dim);
  if (is_bare_) plan.function = NormFunction::kNone;
  plan.out_type = a.types.activations;
  plan.out = a.normed.place();
  NormPlan to_router = plan;
  to_router.out_type = DType::kF32;
  to_router.out = a.routed_by.place();
  const NormPlan plans[] = {plan, to_router};
  const bool has_two = routes_ && a.types.activations != DType::kF32;
  state->backend->Normalise(std::span(plans, has_two ? 2 : 1));
  return OkStatus();
}

Status NormaliseHeadsStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->other);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const ObjectPlace q = a.qk.place();
  const ObjectPlace k = q + int64_t{rows.n_heads} * rows.head_dim * int64_t{sizeof(float)};
  const QkNormConfig& norms = *layer_.config->norms.of_qk;
  const bool is_over_all = norms.over == QkNormConfig::Over::kAllHeads;
  const auto plan_of = [&](const NormWeights& norm, const ObjectPlace& x, int n_heads) -> NormPlan {
    const int64_t d = rows.head_dim;
    return {.function = FunctionOf(norms.kind),
            .x = x,
            .n_rows = a.n_tokens,
            .n_groups = is_over_all ? 1 : n_heads,
            .n_dims = is_over_all ? n_heads * d : d,
            .stride = rows.QkStride(),
            .weight = norms.weighs_turned_queries ? ObjectPlace() : norm.weight.place(),
            .has_group_weights = norms.over == QkNormConfig::Over::kHeadOwn,
            .bias = norm.bias.place(),
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
