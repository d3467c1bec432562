#include "model/model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/plan_checks.h"

namespace kvlathe {
Model::Model(std::shared_ptr<ModelWeights> weights, ThreadPool* pool, Isa isa)
    : weights_(std::move(weights)),
      pool_(pool),
      backend_(MakeCpuBackend(pool, isa)),
      rotations_(weights_->config()) {
  activations_.compute_type = activations_.row_type = weights_->compute_type();
}

StatusOr<std::unique_ptr<Model>> Model::Create(std::shared_ptr<ModelWeights> weights,
                                               const ModelBasis* basis, int n_sink,
                                               ThreadPool* pool, Isa isa, const SealPlan* seal,
                                               const RetentionPlan* retention) {
  std::unique_ptr<Model> model(new Model(std::move(weights), pool, isa));
  const ModelConfig& c = model->config();
  CacheLayout& layout = model->layout_;
  layout.n_layers = c.n_layers;
  layout.n_kv_heads = c.n_kv_heads;
  layout.head_dim = c.head_dim;
  layout.windows = c.attention.Windows(c.n_layers);
  const bool is_plain = basis == nullptr && seal == nullptr && retention == nullptr;
  layout.n_sink = is_plain ? 0 : n_sink;
  const bool has_latent_keys = basis != nullptr && basis->has_latent_keys();
  KVL_RETURN_IF_ERROR(CheckPlans(c, {seal, retention, has_latent_keys}));
  if (seal != nullptr && seal->window > 0) layout.windows.assign(c.n_layers, seal->window);
  if (retention != nullptr) layout.retention = *retention;
  if (seal != nullptr) layout.seal = *seal;
  if (basis != nullptr) model->online_ = basis->online;
  const ModelBasis* const maps = model->online_.has_value() ? nullptr : basis;
  layout.has_latent_keys = maps != nullptr && maps->has_latent_keys();
  for (int l = 0; l < c.n_layers; ++l) {
    for (int g = 0; g < c.n_kv_heads; ++g) {
      HeadRanks ranks = {c.head_dim, c.head_dim};
      if (basis != nullptr) {
        const HeadBasis& head = basis->head(l, g);
        ranks = {head.rank_k, head.rank_v, head.k_bits, head.v_bits, head.has_whole_open_rows};
      }
      layout.shapes.push_back(BlockShapeOf(ranks, c.head_dim, model->activations_.row_type, seal));
    }
  }
  model->row_shapes_ = layout.shapes;
  model->has_basis_ = basis != nullptr;
  if (layout.ReadsWholeKeys() && (maps == nullptr || layout.has_latent_keys)) {
    return Error(StatusCode::kUnimplemented,
                 "score=exact takes votes from whole keys of a basis that maps them after RoPE; "
                 "leave it out");
  }
  if (layout.has_latent_keys) {
    if (layout.MergesEntries()) {
      return Error(StatusCode::kUnimplemented,
                   "keys from before RoPE cannot be merged yet; leave the basis or the retention "
                   "stage out");
    }
    if (model->SplitsSharedLatents(maps->heads_per_latent)) {
      return Error(StatusCode::kUnimplemented,
                   "heads that share latents must hold the same entries; leave the retention stage "
                   "out or give each head latents of its own");
    }
  }
  if (seal != nullptr && seal->format.k.has_codebook) model->codebooks_ = EvenCodebooks(layout);
  const bool has_codes_before_rope = !model->codebooks_.empty() && seal->format.keys_before_rope;
  if (layout.has_latent_keys || has_codes_before_rope) model->rotations_.KeepBlocks(layout.n_sink);
  KVL_RETURN_IF_ERROR(model->CompileLayers(maps));
  model->weights_->DoneReading();
  return model;
}

bool Model::SplitsSharedLatents(int heads_per_latent) const {
  return heads_per_latent > 1 && layout_.DropsEntries() && layout_.retention->HasVotes() &&
         !layout_.retention->shares_heads;
}

bool Model::RowsNeedNoTurn(const ModelBasis* basis) const {
  const ModelConfig& c = config();
  // Rows of a group of query heads would lie apart in the product.
  if (c.rope_dim() > 0 || c.qk_norm || c.dmc.has_value() || layout_.MergesEntries() ||
      c.gqa_group() > 1) {
    return false;
  }
  if (basis == nullptr) return true;
  const auto has_whole_rows = [](const HeadBasis& head) { return head.cut.has_value(); };
  return !basis->has_latent_keys() &&
         (!NeedsWholeRows() || std::ranges::all_of(basis->heads, has_whole_rows));
}

CacheLayout Model::LayoutOf(std::span<const HeadRanks> ranks) const {
  KVL_CHECK_EQ(ranks.size(), layout_.shapes.size());
  CacheLayout layout = layout_;
  for (size_t i = 0; i < ranks.size(); ++i) {
    KVL_CHECK(ranks[i].rank_k <= row_shapes_[i].rank_k && ranks[i].rank_v <= row_shapes_[i].rank_v);
    layout.shapes[i].rank_k = ranks[i].rank_k;
    layout.shapes[i].rank_v = ranks[i].rank_v;
  }
  return layout;
}

void Model::OfferRates(std::span<const HeadRanks> ranks, RanksAtRate ranks_at) {
  KVL_CHECK(!layout_.has_latent_keys && codebooks_.empty());
  layout_ = LayoutOf(ranks);
  ranks_at_ = std::move(ranks_at);
}

StatusOr<const CacheLayout*> Model::LayoutAt(double rate) {
  if (ranks_at_ == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "rate={}: a sequence has a rate of its own only where the weights of all "
                 "dimensions are resident; add resident=full to the basis in --kv",
                 rate);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<HeadRanks> ranks, ranks_at_(rate));
  CacheLayout layout = LayoutOf(ranks);
  if (layout.shapes == layout_.shapes) return &layout_;
  const auto known = std::ranges::find(rate_layouts_, layout.shapes, &CacheLayout::shapes);
  if (known != rate_layouts_.end()) return &*known;
  return &rate_layouts_.emplace_back(std::move(layout));
}

StatusOr<std::unique_ptr<Layer>> Model::MakeLayer(int layer_idx, const ModelBasis* basis) {
  const ModelConfig& c = config();
  auto layer = std::make_unique<Layer>();
  layer->idx = layer_idx;
  layer->config = &c;
  layer->weights = &weights_->layer(layer_idx);
  layer->layout = &layout_;
  layer->window = layout_.window(layer_idx);
  layer->row_type = activations_.row_type;
  layer->rotations = &rotations_;
  if (online_.has_value()) layer->online = &*online_;
  KVL_ASSIGN_OR_RETURN(layer->values, weights_->FoldValues(layer_idx, basis, pool_));
  LayerRows& rows = layer->rows;
  rows.n_heads = c.n_heads;
  rows.n_kv_heads = c.n_kv_heads;
  rows.head_dim = c.head_dim;
  for (int g = 0; g < c.n_kv_heads; ++g) {
    const BlockShape& shape = row_shapes_[layer_idx * c.n_kv_heads + g];
    rows.k_offsets.push_back(rows.k_offsets.back() + shape.rank_k);
    rows.v_offsets.push_back(rows.v_offsets.back() + shape.rank_v);
  }
  rows.turn = !RowsNeedNoTurn(basis);
  if (basis == nullptr) return layer;
  if (!rows.turn) {
    KVL_ASSIGN_OR_RETURN(layer->folded_qk,
                         weights_->FoldQueriesAndKeys(layer_idx, *basis,
                                                      /*keeps_width=*/NeedsWholeRows(), pool_));
    rows.is_cut = !NeedsWholeRows();
    return layer;
  }
  KVL_ASSIGN_OR_RETURN(layer->basis, PackLayerBasis(*basis, layer_idx, activations_.row_type));
  rows.maps_keys = true;
  rows.maps_queries = !layout_.has_latent_keys;
  rows.heads_per_latent = basis->heads_per_latent;
  return layer;
}

Status Model::CompileLayers(const ModelBasis* basis) {
  const int n_joined = basis == nullptr ? 1 : basis->heads_per_latent;
  KVL_CHECK(n_joined == 1 || layout_.has_latent_keys);
  KVL_CHECK_EQ(layout_.n_kv_heads % n_joined, 0);
  for (int l = 0; l < layout_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(l, basis));
    widths_ = widths_.Union(WidthsOf(*layer));
    programs_.emplace_back(std::move(layer));
  }
  PlaceCodebooks();
  return OkStatus();
}

void Model::PlaceCodebooks() {
  if (codebooks_.empty()) return;
  for (size_t l = 0; l < programs_.size(); ++l) programs_[l].set_codebooks(&codebooks_[l]);
}

void Model::set_codebooks(ModelCodebooks codebooks) {
  KVL_CHECK_EQ(std::ssize(codebooks), std::ssize(codebooks_));
  codebooks_ = std::move(codebooks);
  PlaceCodebooks();
}

int64_t Model::basis_bytes() const {
  int64_t n_bytes = CodebookBytes(codebooks_);
  if (online_.has_value()) {
    for (const auto& gram : online_->output_grams) n_bytes += std::ssize(gram) * sizeof(double);
  }
  for (const LayerProgram& program : programs_) n_bytes += program.layer().basis.n_bytes();
  return n_bytes;
}

}  // namespace kvlathe
