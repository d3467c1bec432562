#include "evaluation/stored_rows.h"

#include "kv/blocks/head_table.h"
#include "kv/quantizer/codebooks.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {

ComputedRows::ComputedRows(const CacheLayout& layout, bool keeps_keys_before_rope)
    : width_(layout.n_kv_heads * layout.head_dim),
      before_rope_(keeps_keys_before_rope),
      k_(layout.n_layers),
      v_(layout.n_layers) {}

void ComputedRows::Observe(const QkvView& view) {
  const int64_t n = int64_t{view.n_tokens} * width_;
  const float* k = before_rope_ ? view.k_pre : view.k_post;
  k_[view.layer_idx].insert(k_[view.layer_idx].end(), k, k + n);
  v_[view.layer_idx].insert(v_[view.layer_idx].end(), view.v, view.v + n);
}

StoredRows::StoredRows(const Model& model, const SequenceCache& cache, int layer_idx,
                       int kv_head_idx)
    : layout_(model.layout()),
      layer_idx_(layer_idx),
      kv_head_idx_(kv_head_idx),
      blocks_(cache.head(layer_idx, kv_head_idx).blocks()),
      device_(&cache.device()),
      key_offset_(model.key_offset(layer_idx, kv_head_idx)) {
  head_ = {.format = layout_.seal->format,
           .kv_head_idx = kv_head_idx % layout_.n_heads_per_run(),
           .n_kv_heads = layout_.n_heads_per_run(),
           .layer_rank_v = layout_.n_heads_per_run() * layout_.head_dim,
           .codebooks = model.codebooks().empty() ? nullptr : &model.codebooks()[layer_idx]};
  params_.shape = layout_.shape(layer_idx, kv_head_idx);
  params_.packed = &head_;
  values_.resize(int64_t{2} * kBlockSize * layout_.head_dim);
}

const std::byte* StoredRows::Fetch(const ObjectId& object, int64_t n_bytes,
                                   std::vector<std::byte>* to) {
  if (object.is_null() || n_bytes == 0) return nullptr;
  to->resize(static_cast<size_t>(n_bytes));
  device_->Download({object}, *to);
  return to->data();
}

void StoredRows::Read(const SealedRun& run, int block_idx) {
  const PackedShape shape = PackedShapeOf(layout_, layer_idx_, kv_head_idx_, ExtentOf(run));
  const PackedRun at = {
      .first_block = run.first_block,
      .n_blocks = run.n_blocks,
      .is_prompt = run.is_prompt,
      .is_repaired = run.is_repaired,
      .record = Fetch(run.record, RunRecordBytes(shape), &record_),
      .layer_record = Fetch(run.layer_record, LayerRecordBytes(shape), &layer_record_)};
  const std::byte* const block =
      Fetch(blocks_[run.first_block + block_idx], PackedBlockBytes(shape), &block_);
  ExpandPackedBlock(ViewRun(params_, at), block, block_idx, values_.data());
}

std::vector<float> StoredRows::Key(int entry) const {
  std::vector<float> row(layout_.head_dim);
  for (int c = 0; c < layout_.head_dim; ++c) row[c] = values_[KeyOffset(entry, c)];
  for (size_t c = 0; c < key_offset_.size(); ++c) row[c] += key_offset_[c];
  return row;
}

std::vector<float> StoredRows::Value(int entry) const {
  std::vector<float> row(layout_.head_dim);
  const float* const v = &values_[int64_t{kBlockSize} * layout_.head_dim];
  for (int c = 0; c < layout_.head_dim; ++c) row[c] = v[ValueOffset(params_.shape, entry, c)];
  return row;
}

}  // namespace kvlathe
