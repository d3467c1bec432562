#include "model/activations.h"

#include <algorithm>

namespace kvlathe {

ActivationWidths ActivationWidths::Union(const ActivationWidths& other) const {
  return {.hidden = std::max(hidden, other.hidden),
          .qk = std::max(qk, other.qk),
          .v = std::max(v, other.v),
          .values = std::max(values, other.values),
          .q_full = std::max(q_full, other.q_full),
          .k_full = std::max(k_full, other.k_full),
          .q_rows = std::max(q_rows, other.q_rows),
          .k_rows = std::max(k_rows, other.k_rows),
          .attended = std::max(attended, other.attended),
          .outputs = std::max(outputs, other.outputs),
          .mlp_in = std::max(mlp_in, other.mlp_in),
          .gated = std::max(gated, other.gated),
          .added = std::max(added, other.added),
          .dms_normed = std::max(dms_normed, other.dms_normed),
          .dms_logits = std::max(dms_logits, other.dms_logits),
          .routed_by = std::max(routed_by, other.routed_by),
          .routed_in = std::max(routed_in, other.routed_in),
          .routed_out = std::max(routed_out, other.routed_out)};
}

Status Activations::Reserve(const ActivationWidths& widths) {
  const int64_t row = SizeOf(types.rows), activation = SizeOf(types.activations);
  const int64_t f32 = sizeof(float);
  const auto reserve = [&](MachineBuffer* buffer, int64_t bytes_per_token) {
    if (bytes_per_token == 0) return OkStatus();
    return buffer->EnsureSize(memory, n_tokens * bytes_per_token, "activations");
  };
  KVL_RETURN_IF_ERROR(reserve(&hidden, widths.hidden * f32));
  KVL_RETURN_IF_ERROR(reserve(&normed, widths.hidden * activation));
  KVL_RETURN_IF_ERROR(reserve(&qk, widths.qk * f32));
  KVL_RETURN_IF_ERROR(reserve(&v, widths.v * f32));
  KVL_RETURN_IF_ERROR(reserve(&values, widths.values * row));
  KVL_RETURN_IF_ERROR(reserve(&q_full, widths.q_full * row));
  KVL_RETURN_IF_ERROR(reserve(&k_full, widths.k_full * row));
  KVL_RETURN_IF_ERROR(reserve(&q_rows, widths.q_rows * row));
  KVL_RETURN_IF_ERROR(reserve(&k_rows, widths.k_rows * row));
  KVL_RETURN_IF_ERROR(reserve(&attended, widths.attended * activation));
  KVL_RETURN_IF_ERROR(reserve(&outputs, widths.outputs * activation));
  KVL_RETURN_IF_ERROR(reserve(&mlp_in, widths.mlp_in * f32));
  KVL_RETURN_IF_ERROR(reserve(&gated, widths.gated * activation));
  KVL_RETURN_IF_ERROR(reserve(&dms_normed, widths.dms_normed * f32));
  KVL_RETURN_IF_ERROR(reserve(&dms_logits, widths.dms_logits * f32));
  if (types.activations != DType::kF32) {
    KVL_RETURN_IF_ERROR(reserve(&routed_by, widths.routed_by * f32));
  }
  KVL_RETURN_IF_ERROR(reserve(&routed_in, widths.routed_in * activation));
  KVL_RETURN_IF_ERROR(reserve(&routed_out, widths.routed_out * f32));
  return reserve(&added, widths.added * f32);
}

}  // namespace kvlathe
