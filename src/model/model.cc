#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "model/stored/mean_key_bias.h"
#include "model/weight_grams.h"

namespace kvlathe {

namespace {

// kUnimplemented where rows lose what attention could not give back to them. Values that have lost
// an offset need probabilities that add up to 1, and keys whose offsets are a part of biases of
// scores that may all get the same number.
Status CheckOffsets(const ModelBasis& basis, const ModelConfig& config, bool folds_keys) {
  for (const HeadBasis& head : basis.heads) {
    if (config.has_sink_logits && !head.value_offset.empty()) {
      return Error(StatusCode::kUnimplemented,
                   "the basis takes offsets off values, and beside sink logits the probabilities "
                   "of attention do not add up to 1; make it without");
    }
    if (config.scores_are_absolute() && folds_keys && !head.key_offset.empty()) {
      return Error(
          StatusCode::kUnimplemented,
          "the basis takes offsets off keys, and the biases of keys of a model with learned "
          "positions take them up, where sink logits and caps of scores miss them; make it "
          "without");
    }
  }
  return OkStatus();
}

}  // namespace

Model::Model(std::shared_ptr<ModelWeights> weights)
    : weights_(std::move(weights)), rotations_(weights_->config(), &weights_->machine().memory()) {
  activations_.memory = &machine().memory();
  activations_.types = weights_->types();
}

Model::~Model() {
  if (StepLeader* const leader = weights_->links().leader) leader->Forget(*this);
}

StatusOr<std::unique_ptr<Model>> Model::Create(std::shared_ptr<ModelWeights> weights,
                                               const CachePlan& plan) {
  std::unique_ptr<Model> model(new Model(std::move(weights)));
  model->layout_ = plan.layout();
  model->row_shapes_ = plan.row_shapes();
  model->codebooks_ = plan.codebooks();
  model->ranks_at_ = plan.ranks_at();
  model->has_basis_ = plan.basis() != nullptr;
  if (model->has_basis_) model->online_ = plan.basis()->online;
  KeepAnglesFor(model->layout_, !model->codebooks_.empty(), &model->rotations_);
  KVL_RETURN_IF_ERROR(model->CompileLayers(model->online_.has_value() ? nullptr : plan.basis()));
  model->weights_->DoneReading();
  return model;
}

bool Model::RowsNeedNoTurn(const ModelBasis* basis) const {
  const ModelConfig& c = config();
  // Rows of a group of query heads would lie apart in the product.
  if (c.rope_dim() > 0 || c.norms.of_qk || c.dmc.has_value() || layout_.MergesEntries() ||
      c.gqa_group() > 1) {
    return false;
  }
  if (basis == nullptr) return true;
  if (HeadsPerMap(basis->keys) > 1) return false;  // queries would be as much wider
  if (JoinsValues(basis->keys)) return false;
  const auto has_whole_rows = [](const HeadBasis& head) { return head.cut.has_value(); };
  return !TurnWhenRead(basis->keys) &&
         (!NeedsWholeRows() || std::ranges::all_of(basis->heads, has_whole_rows));
}

StatusOr<const CacheLayout*> Model::LayoutAt(double rate) {
  if (ranks_at_ == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "rate={}: a sequence has a rate of its own only where the weights of all "
                 "dimensions are resident; add resident=full to the basis in --kv",
                 rate);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<HeadRanks> ranks, ranks_at_(rate));
  CacheLayout layout = LayoutAtRanks(layout_, row_shapes_, ranks);
  if (!is_shard() && layout.shapes == layout_.shapes) return &layout_;
  // Ranks that are equal here may differ on other ranks, which know layouts by their rates.
  const auto known = std::ranges::find_if(rate_layouts_, [&](const RateLayout& r) {
    return is_shard() ? r.rate == rate : r.layout.shapes == layout.shapes;
  });
  if (known != rate_layouts_.end()) return &known->layout;
  return &rate_layouts_.emplace_back(rate, std::move(layout)).layout;
}

std::optional<double> Model::RateOf(const CacheLayout& layout) const {
  for (const RateLayout& r : rate_layouts_) {
    if (&r.layout == &layout) return r.rate;
  }
  return std::nullopt;
}

StatusOr<std::vector<FloatTable>> Model::MeanKeyBiases(int layer_idx) {
  std::span<const float> biases;
  if (config().biases.qkv) {
    const int64_t d = config().head_dim;
    const FloatTable& of_all = weights_->layer(layer_idx).qk_bias;
    biases = std::span(of_all.values()).subspan(config().n_heads * d, config().n_kv_heads * d);
  }
  return kvlathe::MeanKeyBiases(config(), layout_, layer_idx, biases, &machine().memory());
}

StatusOr<std::unique_ptr<Layer>> Model::MakeLayer(int layer_idx, const ModelBasis* basis) {
  const ModelConfig& c = config();
  auto layer = std::make_unique<Layer>();
  layer->idx = layer_idx;
  layer->config = &c;
  layer->weights = &weights_->layer(layer_idx);
  layer->sink_logits = layer->weights->sink_logits.place();
  layer->layout = &layout_;
  const ModelShard& shard = weights_->shard();
  layer->whole_idx = static_cast<int>(shard.layers.begin) + layer_idx;
  layer->first_kv_head =
      static_cast<int>(shard.kv_heads.begin) / (c.n_kv_heads / layout_.n_kv_heads);
  layer->is_parted = !shard.has_whole_layers();
  layer->window = layout_.window(layer_idx);
  layer->row_type = activations_.types.rows;
  layer->rotations = &rotations_;
  if (online_.has_value()) {
    layer->online = &*online_;
    KVL_ASSIGN_OR_RETURN(layer->output_grams,
                         UploadGrams(*online_, layer_idx, layout_.n_kv_heads, &machine().memory()));
  }
  KVL_ASSIGN_OR_RETURN(layer->values,
                       weights_->FoldValues(layer_idx, basis, &machine().host_threads()));
  LayerRows& rows = layer->rows;
  rows = RowsOf(
      c,
      std::span(row_shapes_).subspan(int64_t{layer_idx} * layout_.n_kv_heads, layout_.n_kv_heads));
  rows.turn = !RowsNeedNoTurn(basis);
  if (basis == nullptr) {
    KVL_ASSIGN_OR_RETURN(layer->basis.key_offset, MeanKeyBiases(layer_idx));
    return layer;
  }
  if (!rows.turn) {
    KVL_ASSIGN_OR_RETURN(
        layer->folded_qk,
        weights_->FoldQueriesAndKeys(layer_idx, *basis,
                                     /*keeps_width=*/NeedsWholeRows(), &machine().host_threads()));
    rows.is_cut = !NeedsWholeRows();
    return layer;
  }
  KVL_ASSIGN_OR_RETURN(layer->basis,
                       PackLayerBasis(*basis, layer_idx, activations_.types, &machine()));
  rows.keys = basis->keys;
  return layer;
}

Status Model::CompileLayers(const ModelBasis* basis) {
  if (basis != nullptr) {
    KVL_RETURN_IF_ERROR(CheckOffsets(*basis, config(), RowsNeedNoTurn(basis)));
  }
  KVL_CHECK_EQ(layout_.n_kv_heads % HeadsPerLatent(layout_.keys), 0);
  for (int l = 0; l < layout_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(l, basis));
    widths_ = widths_.Union(WidthsOf(*layer));
    programs_.emplace_back(std::move(layer));
  }
  Residents& residents = machine().residents();
  for (size_t l = 0; l < codebooks_.size(); ++l) {
    resident_codebooks_.emplace_back(&residents, residents.AddCodebooks(codebooks_[l]));
    programs_[l].set_codebooks(resident_codebooks_.back().id());
  }
  return OkStatus();
}

std::span<const float> Model::key_offset(int layer_idx, int kv_head_idx) const {
  if (has_basis_) return {};
  const std::vector<FloatTable>& offsets = programs_[layer_idx].layer().basis.key_offset;
  return offsets.empty() ? std::span<const float>() : offsets[kv_head_idx].values();
}

namespace {

// Of the matrices of a layer's experts, which are alike, with n_read of them.
int64_t ExpertBytes(const Layer& layer, int64_t n_read) {
  const ExpertWeights& w = layer.weights->experts;
  return w.router.n_bytes() + w.shared_in.n_bytes() + w.shared_down.n_bytes() +
         n_read * (w.in.front().n_bytes() + w.down.front().n_bytes());
}

}  // namespace

int64_t Model::BytesWithExperts(int64_t n_experts) const {
  int64_t n_bytes = weights_->shard().is_last_stage() ? weights_->lm_head().n_bytes() : 0;
  for (const LayerProgram& program : programs_) {
    const Layer& layer = program.layer();
    n_bytes +=
        layer.folded_qk.has_value() ? layer.folded_qk->qk.n_bytes() : layer.weights->qk.n_bytes();
    n_bytes += layer.weights->mlp_in.n_bytes() + layer.weights->down.n_bytes();
    if (config().has_experts(layer.idx)) n_bytes += ExpertBytes(layer, n_experts);
    n_bytes += layer.values->v.n_bytes() + layer.values->o.n_bytes() + layer.basis.n_bytes();
  }
  return n_bytes;
}

int64_t Model::weight_bytes(int64_t n_tokens) const {
  if (!config().experts.has_value()) return BytesWithExperts(0);
  const auto n_experts = static_cast<double>(config().experts->n_experts);
  const double missed = std::pow(1 - config().experts->n_used / n_experts, n_tokens);
  return BytesWithExperts(std::llround(n_experts * (1 - missed)));
}

int64_t Model::held_weight_bytes() const {
  return BytesWithExperts(config().experts.has_value() ? config().experts->n_experts : 0);
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
