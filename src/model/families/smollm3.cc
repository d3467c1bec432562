#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// no_rope_layers says 1 of a layer that has RoPE; without it every so many layers have none.
StatusOr<std::vector<bool>> ReadTurningLayers(const ConfigFields& fields, int n_layers) {
  std::vector<bool> turns;
  const char* const key = "no_rope_layers";
  if (!fields.Has(key)) {
    KVL_ASSIGN_OR_RETURN(const int interval,
                         fields.IntegerOr("no_rope_layer_interval", 4, 1, 1024));
    for (int l = 0; l < n_layers; ++l) turns.push_back((l + 1) % interval != 0);
    return turns;
  }
  const nlohmann::json& list = fields.at(key);
  if (!list.is_array() || std::ssize(list) < n_layers) {
    return Error(StatusCode::kDataLoss, "{}: '{}' is not a list of {} numbers", fields.where(), key,
                 n_layers);
  }
  for (int l = 0; l < n_layers; ++l) {
    if (list[l] != 0 && list[l] != 1) {
      return Error(StatusCode::kDataLoss, "{}: '{}' holds {}; expected 0 or 1", fields.where(), key,
                   list[l].dump());
    }
    turns.push_back(list[l] == 1);
  }
  return turns;
}

}  // namespace

Status ReadSmolLm3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(
      ReadLlamaLike(fields, c, {.n_kv_heads = 4, .max_positions = 32768, .is_tied = true}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  RopeConfig rope;
  KVL_RETURN_IF_ERROR(ReadRope(fields, {.default_theta = 2e6}, *c, &rope));
  KVL_ASSIGN_OR_RETURN(const std::vector<bool> turns, ReadTurningLayers(fields, c->n_layers));
  KVL_ASSIGN_OR_RETURN(const bool has_window, fields.BoolOr("use_sliding_window", false));
  int window = 0;
  std::vector<bool> slides;
  if (has_window && fields.Has("sliding_window")) {
    KVL_ASSIGN_OR_RETURN(window, fields.Integer("sliding_window", 1, kMaxPositions));
    KVL_ASSIGN_OR_RETURN(slides, ReadSlidingLayers(fields, c->n_layers));
    if (slides.empty()) {  // layers without RoPE
      slides = turns;
      slides.flip();
    }
  }
  slides.resize(c->n_layers);
  SetLayerKinds(rope, window, turns, slides, c);
  return OkStatus();
}

}  // namespace kvlathe
