#include "model/steps/merge.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace kvlathe {

Status TakeDecisionsStep::Run(ForwardState* state) {
  Activations& a = *state->activations;
  const int d = layer_.rows.head_dim;
  const int64_t n_rows = a.n_tokens * (layer_.rows.n_heads + layer_.rows.n_model_kv_heads());
  const int channel = layer_.config->dmc->is_last ? d - 1 : 0;
  a.decisions = state->backend->TakeChannel(
      {.rows = a.qk.place(), .n_rows = n_rows, .n_dims = d, .channel = channel});
  return OkStatus();
}

bool MergeStep::Joins(const Activations& a, int kv_head_idx, int64_t row) const {
  const int every = layer_.layout->retention->merge->every;
  if (every > 0) return (a.tokens[row].position - layer_.layout->n_sink) % every != 0;
  const LayerRows& rows = layer_.rows;
  return a.decisions[row * (rows.n_heads + rows.n_kv_heads) + rows.n_heads + kv_head_idx] >
         layer_.config->dmc->offset;
}

float MergeStep::WeightOf(const Activations& a, int kv_head_idx, int64_t row) const {
  if (layer_.layout->retention->merge->every > 0) return 1;
  const LayerRows& rows = layer_.rows;
  const int group = rows.gqa_group();
  const float* of_queries =
      &a.decisions[row * (rows.n_heads + rows.n_kv_heads) + kv_head_idx * group];
  float sum = 0;
  for (int h = 0; h < group; ++h) sum += of_queries[h];
  const float logit = sum / static_cast<float>(group) + layer_.config->dmc->weight_offset;
  constexpr float kLeast = 1e-20f;  // an entry of weight 0 would have no mean
  return std::max(kLeast, 1 / (1 + std::exp(-logit)) + layer_.config->dmc->epsilon);
}

Status MergeStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->prune);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int n_kv_heads = rows.n_kv_heads;
  a.n_closed.resize(n_kv_heads * a.n_tokens);
  joins_.resize(a.n_closed.size());
  weights_.resize(a.n_closed.size());
  for (int g = 0; g < n_kv_heads; ++g) {
    for (int64_t row = 0; row < a.n_tokens; ++row) {
      joins_[g * a.n_tokens + row] = Joins(a, g, row) ? 1 : 0;
      weights_[g * a.n_tokens + row] = WeightOf(a, g, row);
    }
  }
  items_.clear();
  int64_t first_row = 0;
  for (const SequenceStep& step : state->steps()) {
    const int n_new = step.n_new();
    for (int g = 0; g < n_kv_heads; ++g) {
      const int64_t idx = g * a.n_tokens + first_row;
      const CacheHead head = step.cache->head(layer_.idx, g);
      const HeadRows v = rows.Values(&a, g);
      items_.push_back(
          {.device = &step.cache->device(),
           .open_entry = head.open_entry(),
           .rank_v = step.cache->layout().shape(layer_.idx, g).rank_v,
           .n_tokens = n_new,
           .n_sinks = std::clamp(layer_.layout->n_sink - step.first_position(), 0, n_new),
           .n_entries = std::max(0, head.n_entries() - n_new),
           .joins = joins_.data() + idx,
           .weights = weights_.data() + idx,
           .k = a.qk.place() +
                (first_row * rows.QkStride() + int64_t{rows.n_heads + g} * rows.head_dim) *
                    int64_t{sizeof(float)},
           .v = v.first + first_row * v.stride * SizeOf(a.types.rows),
           .first_closed = idx});
    }
    first_row += n_new;
  }
  state->backend->MergeRows({.items = items_,
                             .merge = *layer_.layout->retention->merge,
                             .head_dim = rows.head_dim,
                             .k_stride = rows.QkStride(),
                             .v_stride = rows.v_offsets.back(),
                             .row_type = a.types.rows},
                            a.n_closed);
  int64_t end = 0;
  for (const SequenceStep& step : state->steps()) {
    if (step.token_ids.empty()) continue;
    end += step.n_new();
    for (int g = 0; g < n_kv_heads; ++g) {
      step.cache->SetMerged(layer_.idx, g, a.n_closed[g * a.n_tokens + end - 1] + 1);
    }
  }
  return OkStatus();
}

}  // namespace kvlathe
