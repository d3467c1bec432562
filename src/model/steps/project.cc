#include "model/steps/project.h"

#include "base/clock.h"
#include "model/steps/normalise.h"

namespace kvlathe {

GateKind GateOf(MlpKind mlp) {
  switch (mlp) {
    case MlpKind::kSwiglu:
      return GateKind::kSwiglu;
    case MlpKind::kGeglu:
      return GateKind::kGegluTanh;
    case MlpKind::kGelu:
      return GateKind::kGelu;
    case MlpKind::kGeluTanh:
      return GateKind::kGeluTanh;
    case MlpKind::kRelu2:
      return GateKind::kRelu2;
    case MlpKind::kXielu:
      return GateKind::kXielu;
    case MlpKind::kClampedSwiglu:
      break;
  }
  return GateKind::kClampedSwiglu;
}

ProductPlan ProductOf(const Weight& w, const FloatTable& bias, int64_t n_rows, const ObjectPlace& x,
                      DType x_type, const ObjectPlace& y) {
  ProductPlan params;
  params.w = w.id();
  params.n_rows = n_rows;
  params.x = x;
  params.x_type = x_type;
  params.x_stride = w.n_in();
  params.bias = bias.place();
  params.y = y;
  params.y_stride = w.n_out();
  return params;
}

Status ProjectStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->linear);
  Activations& a = *state->activations;
  const bool is_folded = layer_.folded_qk.has_value();
  ProductPlan qk = ProductOf(is_folded ? layer_.folded_qk->qk : layer_.weights->qk,
                             is_folded ? layer_.folded_qk->bias : layer_.weights->qk_bias,
                             a.n_tokens, a.normed.place(), a.types.activations, a.qk.place());
  qk.y_type = layer_.rows.turn ? DType::kF32 : a.types.rows;
  state->backend->Project(qk);
  ProductPlan v = ProductOf(layer_.values->v, layer_.values->v_bias, a.n_tokens, a.normed.place(),
                            a.types.activations, a.v.place());
  v.y_type = a.types.rows;
  state->backend->Project(v);
  return OkStatus();
}

Status ReadOutputsStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->rotate);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int group = rows.gqa_group();
  const int64_t element = SizeOf(a.types.activations);
  heads_.clear();
  for (int h = 0; h < rows.n_heads; ++h) {
    const int g = h / group;  // of the cache
    const int64_t column = rows.OutputOffset(g) + h % group * rows.OutputWidth(g);
    heads_.push_back({.w = layer_.basis.output[h / rows.queries_per_key()].id(),
                      .x = a.attended.place() + column * element,
                      .y = a.outputs.place() + int64_t{h} * rows.head_dim * element});
  }
  state->backend->ProjectHeads({.n_tokens = a.n_tokens,
                                .heads = heads_,
                                .x_stride = rows.OutputStride(),
                                .y_stride = int64_t{rows.n_heads} * rows.head_dim,
                                .type = a.types.activations});
  return OkStatus();
}

void AddToStream(const Layer& layer, const StreamProduct& p, ForwardState* state) {
  Activations& a = *state->activations;
  const bool is_normalised = layer.config->norms.of_outputs;
  const bool is_apart = is_normalised || layer.is_parted;
  // Products that are normalised one by one are summed one by one.
  const bool shares_sum = layer.is_parted && !is_normalised;
  const ObjectPlace to = is_apart ? a.added.place() : a.hidden.place();
  ProductPlan product = ProductOf(p.w, p.bias, a.n_tokens, p.x, a.types.activations, to);
  product.accumulate = !is_apart || (shares_sum && !p.begins_sum);
  {
    const ScopedTimer timer(&state->profile->linear);
    state->backend->Project(product);
  }
  if (!is_apart || (shares_sum && !p.ends_sum)) return;
  AddSumToStream(layer, p.norm, state);
}

void AddSumToStream(const Layer& layer, const NormWeights& norm, ForwardState* state) {
  Activations& a = *state->activations;
  const bool is_normalised = layer.config->norms.of_outputs;
  const ObjectPlace to = a.added.place();
  if (layer.is_parted) {
    const ScopedTimer timer(&state->profile->messages);
    state->backend->SumOverRanks({.x = to,
                                  .n_numbers = a.n_tokens * layer.config->hidden_dim,
                                  .added_to = is_normalised ? ObjectPlace() : a.hidden.place()});
  }
  if (!is_normalised) return;
  const ScopedTimer timer(&state->profile->other);
  NormPlan plan = NormOf(*layer.config, norm, to, a.n_tokens, layer.config->hidden_dim);
  plan.function = NormFunction::kRms;  // these norms take no mean off, whatever the others do
  plan.out = to;
  plan.added_to = a.hidden.place();
  state->backend->Normalise({&plan, 1});
}

Status OutputStep::Run(ForwardState* state) {
  Activations& a = *state->activations;
  const MachineBuffer& outputs = layer_.rows.maps_outputs() ? a.outputs : a.attended;
  AddToStream(layer_,
              {.w = layer_.values->o,
               .bias = layer_.values->o_bias,
               .x = outputs.place(),
               .norm = layer_.weights->attn_out_norm,
               .ends_sum = !layer_.config->parallel_block},
              state);
  return OkStatus();
}

Status FeedForwardStep::Run(ForwardState* state) {
  Activations& a = *state->activations;
  const LayerWeights& w = *layer_.weights;
  {
    const ScopedTimer timer(&state->profile->linear);
    state->backend->Project(ProductOf(w.mlp_in, w.mlp_in_bias, a.n_tokens, a.normed.place(),
                                      a.types.activations, a.mlp_in.place()));
  }
  {
    const ScopedTimer timer(&state->profile->other);
    state->backend->Gate({.kind = GateOf(layer_.config->mlp),
                          .x = a.mlp_in.place(),
                          .n_rows = a.n_tokens,
                          .ffn_dim = layer_.config->ffn_dim,
                          .out_type = a.types.activations,
                          .out = a.gated.place(),
                          .xielu = w.xielu});
  }
  AddToStream(layer_,
              {.w = w.down,
               .bias = w.down_bias,
               .x = a.gated.place(),
               .norm = w.ffn_out_norm,
               .begins_sum = !layer_.config->parallel_block},
              state);
  return OkStatus();
}

}  // namespace kvlathe
