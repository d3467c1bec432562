// Which layers of a model have a window, and which have positions.
#include "model/families/family_readers.h"

namespace kvlathe {

StatusOr<std::vector<bool>> ReadSlidingLayers(const ConfigFields& fields, int n_layers) {
  std::vector<bool> slides;
  if (!fields.Has("layer_types")) return slides;
  const nlohmann::json& types = fields.at("layer_types");
  if (!types.is_array() || std::ssize(types) != n_layers) {
    return Error(StatusCode::kDataLoss, "{}: 'layer_types' is not a list of {} names",
                 fields.where(), n_layers);
  }
  for (const nlohmann::json& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return Error(StatusCode::kUnimplemented,
                   "{}: layer type {} is not supported; supported: sliding_attention, "
                   "full_attention",
                   fields.where(), type.dump());
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

Status ReadLayerTypes(const ConfigFields& fields, int default_period, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  if (slides.empty()) {
    KVL_ASSIGN_OR_RETURN(const int period,
                         fields.IntegerOr("sliding_window_pattern", default_period, 1, 1024));
    for (int l = 0; l < c->n_layers; ++l) slides.push_back((l + 1) % period != 0);
  }
  for (const bool is_sliding : slides) c->attention.kind_of_layer.push_back(is_sliding ? 1 : 0);
  return OkStatus();
}

void SetLayerKinds(const RopeConfig& rope, int window, const std::vector<bool>& turns,
                   const std::vector<bool>& slides, ModelConfig* c) {
  AttentionLayers& attention = c->attention;
  attention.kinds.clear();
  if (window >= c->max_seq_len) window = 0;  // nothing ever leaves it
  for (int l = 0; l < c->n_layers; ++l) {
    const int own = slides[l] ? window : 0;
    const bool is_still = !turns[l];
    size_t kind = 0;
    for (; kind < attention.kinds.size(); ++kind) {
      const AttentionKind& known = attention.kinds[kind];
      const bool known_is_still = known.rope.scaling == RopeConfig::Scaling::kStill;
      if (known.window == own && known_is_still == is_still) break;
    }
    if (kind == attention.kinds.size()) {
      attention.kinds.push_back({.rope = rope, .window = own});
      if (is_still) attention.kinds.back().rope = {.scaling = RopeConfig::Scaling::kStill};
    }
    attention.kind_of_layer.push_back(static_cast<int>(kind));
  }
}

}  // namespace kvlathe
