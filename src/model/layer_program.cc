#include "model/layer_program.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/steps/append.h"
#include "model/steps/attend.h"
#include "model/steps/evict.h"
#include "model/steps/experts.h"
#include "model/steps/map_values.h"
#include "model/steps/merge.h"
#include "model/steps/normalise.h"
#include "model/steps/observe.h"
#include "model/steps/project.h"
#include "model/steps/prune.h"
#include "model/steps/rotate.h"

namespace kvlathe {

LayerProgram::LayerProgram(std::shared_ptr<Layer> layer, LayerParts parts)
    : layer_(std::move(layer)) {
  if (parts == LayerParts::kAll) AddProjections();
  if (layer_->rows.maps_values) Add<MapValuesStep>();
  AddAttention(/*attends=*/parts != LayerParts::kStorage);
  if (parts == LayerParts::kAll) AddOutputs();
}

void LayerProgram::AddProjections() {
  const ModelConfig& c = *layer_->config;
  Add<NormaliseStep>(&layer_->weights->attn_norm, !c.norms.of_inputs);
  Add<ProjectStep>();
  if (c.norms.of_qk.has_value()) Add<NormaliseHeadsStep>();
  if (c.dmc.has_value()) Add<TakeDecisionsStep>();
  if (c.decides_in_queries()) Add<TakeQueryChannelStep>();
}

void LayerProgram::AddAttention(bool attends) {
  const CacheLayout& layout = *layer_->layout;
  if (layout.MergesEntries()) Add<MergeStep>();
  Add<ObserveStep>();
  if (layer_->rows.turn) Add<RotateStep>(attends);
  if (layout.GathersQueries()) Add<GatherQueriesStep>();
  Add<AppendStep>();
  if (attends) {
    Add<AttendStep>();
    Add<ObserveOutputsStep>();
    if (layer_->rows.maps_outputs()) Add<ReadOutputsStep>();
  }
  if (layout.DropsEntries()) Add<PruneStep>();
  if (layout.SweepsEntries()) Add<EvictStep>();
  if (layout.ReadsWholeKeys()) Add<CutKeysStep>();
  if (layout.seal.has_value()) {
    auto seal = std::make_unique<SealStep>(layer_.get());
    seal_ = seal.get();
    steps_.push_back(std::move(seal));
  }
}

void LayerProgram::AddOutputs() {
  const ModelConfig& c = *layer_->config;
  const NormWeights* const ffn_norm = &layer_->weights->ffn_norm;
  const bool has_experts = c.has_experts(layer_->idx);
  // A parallel MLP reads the stream as it was before attention added to it.
  if (c.parallel_block && !c.shared_norm) Add<NormaliseStep>(ffn_norm, !c.norms.of_inputs);
  Add<OutputStep>();
  if (!c.parallel_block) Add<NormaliseStep>(ffn_norm, !c.norms.of_inputs, has_experts);
  has_experts ? Add<ExpertsStep>() : Add<FeedForwardStep>();
}

Status LayerProgram::Run(ForwardState* state) {
  for (const auto& step : steps_) KVL_RETURN_IF_ERROR(step->Run(state));
  return OkStatus();
}

StatusOr<std::vector<Status>> LayerProgram::SealEach(std::span<SequenceCache* const> caches,
                                                     ForwardState* state) const {
  KVL_CHECK(seal_ != nullptr);
  std::vector<int> sequences(caches.size());
  std::iota(sequences.begin(), sequences.end(), 0);
  return seal_->SealEach(caches, sequences, state);
}

ActivationWidths RowWidthsOf(const Layer& layer) {
  const LayerRows& rows = layer.rows;
  const int64_t d = rows.head_dim;
  ActivationWidths widths = {
      .qk = rows.QkStride(), .v = rows.v_offsets.back(), .attended = rows.OutputStride()};
  if (rows.maps_values) widths.values = rows.n_model_kv_heads() * d;
  if (rows.turn) {
    widths.q_full = int64_t{rows.n_heads} * rows.key_dim();
    widths.k_full = int64_t{rows.n_kv_heads} * rows.key_dim();
  }
  if (rows.maps_queries()) widths.q_rows = rows.gqa_group() * rows.k_offsets.back();
  if (rows.maps_keys()) widths.k_rows = rows.k_offsets.back();
  if (rows.maps_outputs()) widths.outputs = rows.n_heads * d;
  return widths;
}

ActivationWidths WidthsOf(const Layer& layer) {
  const ModelConfig& c = *layer.config;
  ActivationWidths widths = RowWidthsOf(layer);
  widths.hidden = c.hidden_dim;
  if (c.has_experts(layer.idx)) {
    const ExpertsConfig& experts = *c.experts;
    const int64_t n_used = experts.n_used;
    widths.gated = std::max<int64_t>(n_used * experts.ffn_dim, experts.shared_ffn_dim);
    widths.mlp_in = c.has_gate() ? 2 * widths.gated : widths.gated;
    widths.routed_by = c.hidden_dim;
    widths.routed_in = n_used * c.hidden_dim;
    widths.routed_out = (n_used + (experts.shared_ffn_dim > 0 ? 1 : 0)) * c.hidden_dim;
  } else {
    widths.mlp_in = c.mlp_rows();
    widths.gated = c.ffn_dim;
  }
  if (c.norms.of_outputs || layer.is_parted) widths.added = c.hidden_dim;
  if (layer.layout->SweepsEntries() && !c.decides_in_queries()) {
    widths.dms_normed = c.hidden_dim;
    widths.dms_logits = c.n_kv_heads;
  }
  return widths;
}

}  // namespace kvlathe
