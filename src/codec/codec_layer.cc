#include "codec/codec_layer.h"

#include <algorithm>
#include <utility>

#include "model/stored/mean_key_bias.h"
#include "plan/plan_shard.h"

namespace kvlathe {
namespace {

ModelConfig ConfigOfKind(const ModelConfig& whole, int kind) {
  ModelConfig config = whole;
  config.n_layers = 1;
  config.attention = {.kinds = {whole.attention.kinds[kind]}, .kind_of_layer = {}};
  return config;
}

// Whether nothing but attention itself asks for queries.
bool DoesWithoutQueries(const CacheLayout& layout) {
  return !layout.GathersQueries() && !(layout.DropsEntries() && layout.retention->HasVotes());
}

std::vector<float> ValueOffsetOf(const ModelBasis& basis) {
  std::vector<float> offsets;
  const auto has_offset = [](const HeadBasis& head) { return !head.value_offset.empty(); };
  if (std::ranges::none_of(basis.heads, has_offset)) return offsets;
  for (const HeadBasis& head : basis.heads) {
    std::vector<float> offset = head.value_offset;
    offset.resize(basis.head_dim);
    offsets.insert(offsets.end(), offset.begin(), offset.end());
  }
  return offsets;
}

}  // namespace

KindOfLayers::KindOfLayers(const ModelConfig& whole, int kind, Device* memory)
    : config(ConfigOfKind(whole, kind)),
      rotations(config, memory),
      ropes(config.attention, config.rope_dim()) {}

StatusOr<std::unique_ptr<CodecLayer>> CodecLayer::Create(const CachePlan& plan, int layer_idx,
                                                         const NumberTypes& types,
                                                         KindOfLayers* kind,
                                                         std::span<const float> key_biases,
                                                         Machine* machine) {
  const int n_model_heads = plan.layout().n_kv_heads * HeadsPerMap(plan.layout().keys);
  const CachePlan part =
      ShardOf(plan, {.layers = {layer_idx, layer_idx + 1}, .kv_heads = {0, n_model_heads}});
  std::unique_ptr<CodecLayer> made(new CodecLayer());
  made->layout_ = part.layout();
  made->kind_ = kind;
  made->codebooks_ = part.codebooks();
  const CacheLayout& layout = made->layout_;
  auto layer = std::make_shared<Layer>();
  layer->idx = 0;
  layer->whole_idx = layer_idx;
  layer->config = &kind->config;
  layer->layout = &layout;
  layer->window = layout.window(0);
  layer->row_type = types.rows;
  layer->rotations = &kind->rotations;
  layer->rows = RowsOf(kind->config, part.row_shapes());
  if (kind->config.has_sink_logits) {
    made->memory_ = &machine->memory();
    const std::vector<float> logits(kind->config.n_heads);
    KVL_ASSIGN_OR_RETURN(made->sink_logits_,
                         FloatTable::Make(made->memory_, logits, "sink logits"));
    layer->sink_logits = made->sink_logits_.place();
  }
  if (part.basis() != nullptr && part.basis()->online.has_value()) {
    made->online_ = part.basis()->online;
    layer->online = &*made->online_;
    KVL_ASSIGN_OR_RETURN(layer->output_grams,
                         UploadGrams(*made->online_, 0, layout.n_kv_heads, &machine->memory()));
  } else if (part.basis() != nullptr) {
    made->basis_ = *part.basis();
    made->value_offset_ = ValueOffsetOf(*made->basis_);
    layer->rows.keys = made->basis_->keys;
    layer->rows.maps_values = MapsValues(*made->basis_, 0);
    KVL_ASSIGN_OR_RETURN(layer->basis, PackLayerBasis(*made->basis_, 0, types, machine,
                                                      /*has_weights=*/false));
  }
  if (part.basis() == nullptr || layer->online != nullptr) {
    KVL_ASSIGN_OR_RETURN(
        layer->basis.key_offset,
        MeanKeyBiases(kind->config, layout, /*layer_idx=*/0, key_biases, &machine->memory()));
  }
  if (!made->codebooks_.empty()) {
    Residents& residents = machine->residents();
    made->resident_codebooks_ = {&residents, residents.AddCodebooks(made->codebooks_[0])};
    layer->codebooks = made->resident_codebooks_.id();
  }
  made->needs_unturned_rows_ =
      layer->rows.keys != Keys(TurnedKeys{}) &&
      (TurnWhenRead(layout.keys) || HasFrames(layout.keys) || TurningPairs(layout.keys) > 0);
  made->needs_unturned_rows_ |= layout.MergesEntries();
  made->layer_ = layer;
  made->attending_ = std::make_unique<LayerProgram>(layer, LayerParts::kAttention);
  if (DoesWithoutQueries(layout)) {
    made->storing_ = std::make_unique<LayerProgram>(layer, LayerParts::kStorage);
  }
  return made;
}

void CodecLayer::SetSinkLogits(std::span<const float> logits) {
  memory_->Upload(sink_logits_.place(), std::as_bytes(logits));
}

}  // namespace kvlathe
