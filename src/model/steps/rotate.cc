#include "model/steps/rotate.h"

#include <algorithm>

#include "base/clock.h"

namespace kvlathe {

RotatePlan TurnsOf(const Layer& layer, std::span<const TokenPlace> tokens) {
  const ModelConfig& c = *layer.config;
  const LayerRows& rows = layer.rows;
  RotatePlan plan = {.tokens = tokens,
                     .gqa_group = rows.queries_per_key(),
                     .head_dim = rows.head_dim,
                     .stride = rows.QkStride(),
                     .cos = layer.rotations->query_cos(layer.idx),
                     .sin = layer.rotations->query_sin(layer.idx),
                     .key_cos = layer.rotations->cos(layer.idx),
                     .key_sin = layer.rotations->sin(layer.idx),
                     .rope_dim = layer.rotations->rope_dim(layer.idx)};
  if (layer.weights != nullptr) plan.query_weights = layer.weights->turned_query_weights.place();
  if (c.dmc.has_value() && c.dmc->zeroes_after_rope) {
    plan.zeroed_channel = c.dmc->is_last ? rows.head_dim - 1 : 0;
  }
  if (c.decides_in_queries() && c.dms->query_channel->zeroes_after_rope) {
    plan.zeroed_channel = rows.head_dim - 1;
    plan.zeroes_first_query_only = true;
  }
  return plan;
}

HeadTurn RotateStep::TurnOf(int kv_head_idx, Activations* a) const {
  const LayerRows& rows = layer_.rows;
  const int d = rows.head_dim, group = rows.queries_per_key();
  const int g = kv_head_idx / rows.heads_per_map();  // of the cache
  const int part = kv_head_idx % rows.heads_per_map();
  const int64_t element = SizeOf(a->types.rows), key_dim = rows.key_dim();
  const ObjectPlace qk = a->qk.place();
  const int64_t f32_row = d * int64_t{sizeof(float)};
  HeadTurn head = {.q = qk + int64_t{kv_head_idx} * group * f32_row,
                   .k = qk + int64_t{rows.n_heads + kv_head_idx} * f32_row,
                   .turned_q = rows.WholeQueries(a, g).first + part * group * key_dim * element,
                   .turned_q_stride = rows.gqa_group() * key_dim,
                   .turned_q_width = static_cast<int>(key_dim),
                   .turned_q_place = part * d,
                   .turned_k = rows.WholeKeys(a, g)};
  head.turned_k.first = head.turned_k.first + part * d * element;
  const LayerBasis& basis = layer_.basis;
  if (!rows.maps_keys()) {
    if (!basis.key_offset.empty()) head.key_offset = basis.key_offset[g].place();
    return head;
  }
  head.key_offset = basis.key_offset[g].place() + part * f32_row;
  if (TurningPairs(rows.keys) > 0) {
    head.turning_mean = basis.turning_mean[g].place() + part * f32_row;
  }
  if (rows.maps_queries() && turns_queries_) {
    const int64_t width = rows.KeyWidth(g);
    head.query_map = basis.query[kv_head_idx].id();
    head.mapped_q = rows.Queries(a, g).first + part * group * width * element;
    head.mapped_q_stride = rows.gqa_group() * width;
  }
  if (part > 0) return head;
  head.key_map = basis.KeyMap(g).id();
  head.joined_k = rows.WholeKeys(a, g / rows.heads_per_latent() * rows.heads_per_latent());
  head.mapped_k = rows.Keys(a, g).first;
  if (rows.joins_values()) head.added_v = rows.Values(a, g);
  return head;
}

Status RotateStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->rotate);
  Activations& a = *state->activations;
  heads_.clear();
  for (int g = 0; g < layer_.rows.n_model_kv_heads(); ++g) heads_.push_back(TurnOf(g, &a));
  RotatePlan plan = TurnsOf(layer_, a.tokens);
  plan.heads = heads_;
  if (a.are_turned) plan.rope_dim = 0;
  if (!turns_queries_) plan.gqa_group = 0;
  if (TurnWhenRead(layer_.layout->keys)) plan.first_unturned = layer_.layout->n_sink;
  plan.key_cos = layer_.rotations->key_cos(layer_.idx);
  plan.key_sin = layer_.rotations->key_sin(layer_.idx);
  plan.first_less_mean = layer_.layout->n_sink;
  if (HasFrames(layer_.layout->keys)) plan.first_less_offset = layer_.layout->n_sink;
  plan.keys_per_map = KeysPerMap(layer_.rows.keys);
  plan.out_type = a.types.rows;
  state->backend->RotateAndMap(plan);
  return OkStatus();
}

Status GatherQueriesStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->rotate);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int group = rows.gqa_group();
  grams_.clear();
  int64_t token_idx = 0;  // of the sequence's first token in the batch
  for (const SequenceStep& step : state->steps()) {
    const int n_sinks = std::clamp(layer_.layout->n_sink - step.first_position(), 0, step.n_new());
    for (int g = 0; g < rows.n_kv_heads; ++g) {
      const ObjectId gram = step.cache->head(layer_.idx, g).query_gram();
      if (gram.is_null()) continue;
      HeadRows q = rows.WholeQueries(&a, g);
      q.first = q.first + (token_idx + n_sinks) * group * q.stride * SizeOf(a.types.rows);
      grams_.push_back({q, int64_t{step.n_new() - n_sinks} * group, &step.cache->device(), gram});
    }
    token_idx += step.n_new();
  }
  state->backend->GatherGrams(grams_, rows.head_dim, a.types.rows);
  return OkStatus();
}

}  // namespace kvlathe
