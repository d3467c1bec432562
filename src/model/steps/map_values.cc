#include "model/steps/map_values.h"

#include "base/clock.h"

namespace kvlathe {

Status MapValuesStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->rotate);
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int64_t element = SizeOf(a.types.rows);
  heads_.clear();
  for (int g = 0; g < rows.n_kv_heads; ++g) {
    const int64_t first =
        g / rows.heads_per_latent() * rows.heads_per_latent();  // of those it maps
    heads_.push_back({.w = layer_.basis.value[g].id(),
                      .x = a.values.place() + first * rows.key_dim() * element,
                      .y = rows.Values(&a, g).first});
  }
  state->backend->ProjectHeads({.n_tokens = a.n_tokens,
                                .heads = heads_,
                                .x_stride = int64_t{rows.n_model_kv_heads()} * rows.head_dim,
                                .y_stride = rows.v_offsets.back(),
                                .type = a.types.rows});
  return OkStatus();
}

}  // namespace kvlathe
