#include "model/steps/append.h"

#include <algorithm>

#include "base/clock.h"

namespace kvlathe {

void AppendStep::PlanSinks(const SequenceStep& step, int kv_head_idx, int64_t first_row,
                           int n_sinks, Activations* a) {
  const int g = kv_head_idx, first = step.first_position();
  const int64_t element = SizeOf(a->types.rows);
  const int64_t k_bytes = layer_.rows.key_dim() * element;
  const CacheHead head = step.cache->head(layer_.idx, g);
  const int64_t v_bytes = head.shape().sink_value_width() * element;
  const HeadRows k = layer_.rows.WholeKeys(a, g), v = layer_.rows.Values(a, g);
  const ObjectPlace sink_k = head.sink_k();
  const ObjectPlace sink_v = head.sink_v();
  for (int t = 0; t < n_sinks; ++t) {
    const int64_t row = first_row + t, position = first + t;
    plan_.copies.push_back({.from = k.first + row * k.stride * element,
                            .to = {sink_k.object, sink_k.offset + position * k_bytes},
                            .n_bytes = k_bytes});
    plan_.copies.push_back({.from = v.first + row * v.stride * element,
                            .to = {sink_v.object, sink_v.offset + position * v_bytes},
                            .n_bytes = v_bytes});
  }
}

void AppendStep::PlanHead(int sequence, const SequenceStep& step, int kv_head_idx,
                          int64_t first_row, Activations* a) {
  const int g = kv_head_idx, n_new = step.n_new();
  const int64_t element = SizeOf(a->types.rows);
  const SequenceCache& cache = *step.cache;
  const CacheHead head = cache.head(layer_.idx, g);
  const HeadRows k =
      cache.has_whole_keys(layer_.idx) ? layer_.rows.WholeKeys(a, g) : layer_.rows.Keys(a, g);
  const HeadRows v = layer_.rows.Values(a, g);
  const int n_sinks = std::clamp(layer_.layout->n_sink - step.first_position(), 0, n_new);
  AppendPlan::Item item = {.device = &cache.device(),
                           .sequence = sequence,
                           .first_copy = static_cast<int>(plan_.copies.size()),
                           .n_copies = 2 * n_sinks,
                           .first_rows = static_cast<int>(plan_.rows.size())};
  if (n_sinks > 0) PlanSinks(step, g, first_row, n_sinks, a);
  BlockRows rows;
  rows.shape = head.shape();
  rows.is_coded = layer_.layout->CodesOpenRows();
  rows.k_stride = k.stride;
  rows.v_stride = v.stride;
  const auto blocks = head.blocks();
  const int n_entries = head.n_entries();
  const bool merges = layer_.layout->MergesEntries();
  for (int t = n_sinks; t < n_new; t += rows.n_rows) {
    const int64_t row = first_row + t;
    int entry = n_entries - (n_new - t), n_rows = n_new - t;
    if (merges) {
      // The last row of each entry is the one that holds all of it.
      const int* const n_closed = &a->n_closed[g * a->n_tokens + row];
      rows.n_rows = 1;
      if (t + 1 < n_new && n_closed[1] == n_closed[0]) continue;
      entry = n_closed[0];
      n_rows = 1;
    }
    rows.block = blocks[entry / kBlockSize];
    rows.first_slot = entry % kBlockSize;
    rows.n_rows = std::min(n_rows, kBlockSize - rows.first_slot);
    rows.k = k.first + row * k.stride * element;
    rows.v = v.first + row * v.stride * element;
    plan_.rows.push_back(rows);
  }
  item.n_rows = static_cast<int>(plan_.rows.size()) - item.first_rows;
  plan_.items.push_back(item);
}

Status AppendStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->append);
  const int n_kv_heads = layer_.rows.n_kv_heads;
  plan_.Clear();
  plan_.layer_idx = layer_.idx;
  int64_t first_row = 0;  // of the sequence in the batch
  for (int i = 0; i < std::ssize(state->steps()); ++i) {
    const SequenceStep& step = state->steps()[i];
    for (int g = 0; g < n_kv_heads; ++g) PlanHead(i, step, g, first_row, state->activations);
    first_row += step.n_new();
  }
  state->backend->Append(plan_);
  return OkStatus();
}

}  // namespace kvlathe
