// One layer of a codec: its part of the plan, and the programs that take its rows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "machine/machine.h"
#include "model/layer_program.h"
#include "model/rotation_tables.h"
#include "plan/cache_plan.h"

namespace kvlathe {

// The angles of layers of one kind of attention. Each layer is the first and only one of `config`,
// as a stage of a model that holds one layer has it.
struct KindOfLayers {
  ModelConfig config;
  RotationTables rotations;
  LayerRopes ropes;  // on the host, to turn rows back

  KindOfLayers(const ModelConfig& whole, int kind, Device* memory);
  KindOfLayers(const KindOfLayers&) = delete;
};

class CodecLayer {
 public:
  // `plan` is of all layers; `kind` and `machine` outlive the layer. key_biases are those of the
  // layer, [n_kv_heads, head_dim], or empty. kResourceExhausted when there is no memory for the
  // maps.
  static StatusOr<std::unique_ptr<CodecLayer>> Create(const CachePlan& plan, int layer_idx,
                                                      const NumberTypes& types, KindOfLayers* kind,
                                                      std::span<const float> key_biases,
                                                      Machine* machine);

  const CacheLayout& layout() const { return layout_; }  // of this layer alone
  const Layer& layer() const { return *layer_; }
  KindOfLayers& kind() const { return *kind_; }
  // Of each KV head of the cache; null where rows lie as they come.
  const HeadBasis* basis(int kv_head_idx) const {
    return basis_.has_value() ? &basis_->head(0, kv_head_idx) : nullptr;
  }
  const LayerCodebooks* codebooks() const { return codebooks_.empty() ? nullptr : &codebooks_[0]; }
  // [n_heads], of all calls from now on. Only with ModelConfig::has_sink_logits.
  void SetSinkLogits(std::span<const float> logits);
  // Of all KV heads of the model side by side, taken off values before they are mapped; or empty.
  const std::vector<float>& value_offset() const { return value_offset_; }
  // What every key of a head loses before it is stored, where no basis comes before: [head_dim], or
  // empty.
  std::span<const float> key_offset(int kv_head_idx) const {
    const std::vector<FloatTable>& offsets = layer_->basis.key_offset;
    if (basis_.has_value() || offsets.empty()) return {};
    return offsets[kv_head_idx].values();
  }
  LayerProgram& attending() { return *attending_; }
  // Without queries; null where the cache cannot do without them.
  LayerProgram* storing() { return storing_.get(); }
  // Whether rows are read as they are before RoPE, so that turned ones are turned back first.
  bool needs_unturned_rows() const { return needs_unturned_rows_; }

 private:
  CodecLayer() = default;

  CacheLayout layout_;
  KindOfLayers* kind_ = nullptr;
  std::optional<ModelBasis> basis_;
  std::optional<OnlineInputs> online_;
  ModelCodebooks codebooks_;
  std::vector<float> value_offset_;
  FloatTable sink_logits_;
  Device* memory_ = nullptr;  // where they lie
  std::shared_ptr<Layer> layer_;
  Resident<CodebooksId> resident_codebooks_;
  std::unique_ptr<LayerProgram> attending_, storing_;
  bool needs_unturned_rows_ = false;
};

}  // namespace kvlathe
