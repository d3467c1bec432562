#include "model/model.h"

#include <algorithm>

#include "base/check.h"
#include "model/plan_checks.h"

namespace kvlathe {
namespace {

// Rows of one matrix transposed: [n_rows, n_columns] -> [n_columns, n_rows].
std::vector<float> Transposed(const std::vector<float>& m, int n_rows, int n_columns) {
  std::vector<float> t(m.size());
  for (int i = 0; i < n_rows; ++i) {
    for (int j = 0; j < n_columns; ++j) t[j * n_rows + i] = m[i * n_columns + j];
  }
  return t;
}

StatusOr<PackedMatrix> PackTransposed(const std::vector<float>& m, int n_rows, int n_columns,
                                      DType compute_type) {
  KVL_ASSIGN_OR_RETURN(PackedMatrix packed, PackedMatrix::Create(n_columns, n_rows, compute_type));
  const std::vector<float> t = Transposed(m, n_rows, n_columns);
  packed.PackRows(0, n_columns, DType::kF32, t.data(), n_rows);
  return packed;
}

}  // namespace

Model::Model(std::shared_ptr<ModelWeights> weights, ThreadPool* pool, Isa isa)
    : weights_(std::move(weights)),
      pool_(pool),
      linear_(pool, isa),
      attention_(pool, isa),
      elementwise_(&GetElementwiseKernels(isa)),
      attend_(&GetAttendKernels(isa, weights_->compute_type())),
      ropes_(weights_->config().attention, weights_->config().rope_dim()),
      row_type_(weights_->compute_type()) {}

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
  if (seal != nullptr && !seal->format.is_rotated) {
    model->sealer_ =
        std::make_unique<Sealer>(seal->format, model->row_type_, seal->power_loops, pool, isa);
  }
  if (basis != nullptr) model->online_ = basis->online;
  const ModelBasis* const maps = model->online_.has_value() ? nullptr : basis;
  model->offsets_.resize(c.n_layers);
  for (int l = 0; l < c.n_layers; ++l) {
    LayerOffsets& offsets = model->offsets_[l];
    offsets.rank_k.push_back(0);
    offsets.rank_v.push_back(0);
    for (int g = 0; g < c.n_kv_heads; ++g) {
      HeadRanks ranks = {c.head_dim, c.head_dim};
      if (basis != nullptr) {
        const HeadBasis& head = basis->head(l, g);
        ranks = {head.rank_k, head.rank_v, head.k_bits, head.v_bits, head.has_whole_open_rows};
      }
      const BlockShape shape = BlockShapeOf(ranks, c.head_dim, model->row_type_, seal);
      layout.shapes.push_back(shape);
      offsets.rank_k.push_back(offsets.rank_k.back() + shape.rank_k);
      offsets.rank_v.push_back(offsets.rank_v.back() + shape.rank_v);
    }
    KVL_ASSIGN_OR_RETURN(auto projection, model->weights_->FoldValues(l, maps, pool));
    model->projections_.push_back(std::move(projection));
  }
  model->has_basis_ = basis != nullptr;
  KVL_RETURN_IF_ERROR(model->PlaceBasis(maps));
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
    if (model->SplitsSharedLatents()) {
      return Error(StatusCode::kUnimplemented,
                   "heads that share latents must hold the same entries; leave the retention stage "
                   "out or give each head latents of its own");
    }
    model->PrepareBlockRotations();
  }
  if (seal != nullptr && seal->format.k.has_codebook) {
    model->PrepareCodebooks();
  }
  model->weights_->DoneReading();
  return model;
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
    const int l = static_cast<int>(i) / layout_.n_kv_heads,
              g = static_cast<int>(i) % layout_.n_kv_heads;
    const std::vector<int64_t>& v = offsets_[l].rank_v;
    KVL_CHECK(ranks[i].rank_k <= KeyWidth(l, g) && ranks[i].rank_v <= v[g + 1] - v[g]);
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

Status Model::PlaceBasis(const ModelBasis* basis) {
  needs_no_turn_ = RowsNeedNoTurn(basis);
  if (basis == nullptr) return OkStatus();
  if (!needs_no_turn_) return PackBasis(*basis);
  for (int l = 0; l < layout_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(QkProjection qk, weights_->FoldQueriesAndKeys(
                                              l, *basis, /*keeps_width=*/NeedsWholeRows(), pool_));
    folded_qk_.push_back(std::move(qk));
  }
  return OkStatus();
}

Status Model::PackBasis(const ModelBasis& basis) {
  bases_.resize(layout_.n_layers);
  layout_.has_latent_keys = basis.has_latent_keys();
  heads_per_latent_ = basis.heads_per_latent;
  KVL_CHECK(heads_per_latent_ == 1 || layout_.has_latent_keys);
  KVL_CHECK_EQ(layout_.n_kv_heads % heads_per_latent_, 0);
  const int d = layout_.head_dim;
  for (int l = 0; l < layout_.n_layers; ++l) {
    for (int g = 0; g < layout_.n_kv_heads; ++g) {
      const HeadBasis& head = basis.head(l, g);
      if (layout_.has_latent_keys) {
        bases_[l].latents.emplace_back(head.key_way_back, head.key_offset, d, row_type_);
      } else {
        KVL_ASSIGN_OR_RETURN(PackedMatrix query,
                             PackTransposed(head.query_basis, d, head.rank_k, row_type_));
        bases_[l].query.push_back(std::move(query));
      }
      if (heads_per_latent_ > 1) {
        KVL_ASSIGN_OR_RETURN(
            PackedMatrix output,
            PackTransposed(head.output_basis, heads_per_latent_ * head.rank_v, d, row_type_));
        bases_[l].output.push_back(std::move(output));
      }
      PackedMatrix key;  // one copy serves both where the method uses one rotation
      if (head.key_basis != head.query_basis) {
        KVL_ASSIGN_OR_RETURN(
            key, PackTransposed(head.key_basis, heads_per_latent_ * d, head.rank_k, row_type_));
      }
      bases_[l].key.push_back(std::move(key));
      bases_[l].key_offset.push_back(head.key_offset);
    }
  }
  return OkStatus();
}

void Model::PrepareCodebooks() {
  codebooks_ = EvenCodebooks(layout_);
  if (layout_.seal->format.keys_before_rope) PrepareBlockRotations();
}

void Model::PrepareBlockRotations() {
  for (const AttentionKind& kind : config().attention.kinds) {
    block_rotations_.emplace_back(kind.rope, config().rope_dim(), layout_.n_sink);
  }
}

void Model::set_codebooks(ModelCodebooks codebooks) {
  KVL_CHECK_EQ(std::ssize(codebooks), std::ssize(codebooks_));
  codebooks_ = std::move(codebooks);
}

int64_t Model::basis_bytes() const {
  int64_t n_bytes = CodebookBytes(codebooks_);
  if (online_.has_value()) {
    for (const auto& gram : online_->output_grams) n_bytes += std::ssize(gram) * sizeof(double);
  }
  for (const LayerBasis& layer : bases_) {
    for (const PackedMatrix& m : layer.query) n_bytes += m.n_bytes();
    for (const PackedMatrix& m : layer.key) n_bytes += m.n_bytes();
    for (const std::vector<float>& o : layer.key_offset) n_bytes += std::ssize(o) * sizeof(float);
    for (const LatentMap& map : layer.latents) n_bytes += map.n_bytes();
    for (const PackedMatrix& m : layer.output) n_bytes += m.n_bytes();
  }
  return n_bytes;
}

}  // namespace kvlathe
