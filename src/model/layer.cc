#include "model/layer.h"

#include <utility>

namespace kvlathe {

LayerRows RowsOf(const ModelConfig& config, std::span<const BlockShape> row_shapes) {
  LayerRows rows;
  rows.n_heads = config.n_heads;
  rows.n_kv_heads = static_cast<int>(row_shapes.size());
  rows.head_dim = config.head_dim;
  for (const BlockShape& shape : row_shapes) {
    rows.k_offsets.push_back(rows.k_offsets.back() + shape.rank_k);
    rows.v_offsets.push_back(rows.v_offsets.back() + shape.rank_v);
  }
  return rows;
}

StatusOr<std::vector<MachineBuffer>> UploadGrams(const OnlineInputs& online, int layer_idx,
                                                 int n_kv_heads, Device* memory) {
  std::vector<MachineBuffer> uploaded;
  if (online.output_grams.empty()) return uploaded;
  for (int g = 0; g < n_kv_heads; ++g) {
    const std::vector<double>& gram = online.output_grams[layer_idx * n_kv_heads + g];
    KVL_ASSIGN_OR_RETURN(
        MachineBuffer buffer,
        MachineBuffer::CopyOf(memory, std::as_bytes(std::span(gram)), "Gram matrices of W_O"));
    uploaded.push_back(std::move(buffer));
  }
  return uploaded;
}

void KeepAnglesFor(const CacheLayout& layout, bool has_codebooks, RotationTables* rotations) {
  const bool has_codes_before_rope = has_codebooks && layout.seal->format.seals_keys_before_rope();
  if (TurnWhenRead(layout.keys) || has_codes_before_rope) rotations->KeepBlocks(layout.n_sink);
  if (HasFrames(layout.keys)) rotations->KeepFrames(layout.n_sink);
  rotations->KeepMeanAngles(TurningPairs(layout.keys));
}

HeadRows LayerRows::ProductRows(Activations* a, int head_idx) const {
  // There are as many query heads as KV heads.
  const auto first_of = [&](int head) {
    return is_cut ? k_offsets[head] : int64_t{head} * head_dim;
  };
  const int64_t n_queries = first_of(n_kv_heads);
  const int64_t first = head_idx / n_kv_heads * n_queries + first_of(head_idx % n_kv_heads);
  return {a->qk.place() + first * SizeOf(a->types.rows), 2 * n_queries};
}

HeadRows LayerRows::Queries(Activations* a, int kv_head_idx) const {
  if (!maps_queries()) return WholeQueries(a, kv_head_idx);
  return {a->RowsBehind(a->q_rows, k_offsets[kv_head_idx], gqa_group()), KeyWidth(kv_head_idx)};
}

HeadRows LayerRows::WholeQueries(Activations* a, int kv_head_idx) const {
  if (!turn) return ProductRows(a, kv_head_idx);
  return {a->RowsBehind(a->q_full, int64_t{kv_head_idx} * key_dim(), gqa_group()), key_dim()};
}

HeadRows LayerRows::Keys(Activations* a, int kv_head_idx) const {
  if (!maps_keys()) return WholeKeys(a, kv_head_idx);
  return {a->RowsBehind(a->k_rows, k_offsets[kv_head_idx], 1), KeyWidth(kv_head_idx)};
}

HeadRows LayerRows::WholeKeys(Activations* a, int kv_head_idx) const {
  if (!turn) return ProductRows(a, n_kv_heads + kv_head_idx);
  const int idx = kv_head_idx % heads_per_latent();
  const ObjectPlace rows = a->RowsBehind(a->k_full, int64_t{kv_head_idx - idx} * key_dim(), 1);
  return {rows + idx * key_dim() * SizeOf(a->types.rows), int64_t{heads_per_latent()} * key_dim()};
}

HeadRows LayerRows::Values(Activations* a, int kv_head_idx) const {
  return {a->v.place() + v_offsets[kv_head_idx] * SizeOf(a->types.rows), v_offsets.back()};
}

}  // namespace kvlathe
