// GLM and Cohere: pairs of neighbouring channels turn.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

Status ReadCohereLike(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c,
      {.max_positions = 8192, .eps_key = "layer_norm_eps", .eps = 1e-5, .is_tied = true}));
  KVL_ASSIGN_OR_RETURN(const double scale, fields.NumberOr("logit_scale", 0.0625, 1e-6, 1e6));
  c->logit_scale = static_cast<float>(scale);
  c->norms.kind = NormKind::kLayerBare;
  c->parallel_block = c->shared_norm = true;
  c->has_neighbour_pairs = true;
  return ReadAttentionBias(fields, c);
}

Status ReadCohere(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadCohereLike(fields, c));
  KVL_ASSIGN_OR_RETURN(const bool has_qk_norm, fields.BoolOr("use_qk_norm", false));
  if (has_qk_norm) {
    c->norms.of_qk =
        QkNormConfig{.over = QkNormConfig::Over::kHeadOwn, .kind = NormKind::kLayerBare};
  }
  return ReadRope(fields, {.default_theta = 5e5}, *c, &c->attention.kinds[0].rope);
}

// Layers with a window turn, and those that see everything have no positions.
Status ReadCohere2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadCohereLike(fields, c));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_qk_norm", false));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_parallel_block", true));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_gated_activation", true));
  KVL_ASSIGN_OR_RETURN(const double rotary_share, fields.NumberOr("rotary_pct", 1, 0, 1));
  if (rotary_share != 1) {
    return Error(StatusCode::kUnimplemented, "{}: rotary_pct {} is not supported; supported: 1",
                 fields.where(), rotary_share);
  }
  RopeConfig rope;
  KVL_RETURN_IF_ERROR(ReadRope(fields, {}, *c, &rope));
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  KVL_RETURN_IF_ERROR(ReadLayerTypes(fields, 4, c));
  std::vector<bool> slides;
  for (const int kind : c->attention.kind_of_layer) slides.push_back(kind == 1);
  c->attention.kind_of_layer.clear();
  SetLayerKinds(rope, window, /*turns=*/slides, slides, c);
  return OkStatus();
}

Status ReadGlm(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c, {.n_kv_heads = 2, .head_dim = 128, .max_positions = 131072, .eps = 1.5625e-7}));
  c->layout = WeightLayout::kGlm;
  c->has_neighbour_pairs = true;
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.5, c));
  return ReadRope(fields, c);
}

Status ReadGlm4(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGlm(fields, c));
  c->norms.of_outputs = true;
  return OkStatus();
}

}  // namespace

std::span<const Family> NeighbourPairFamilies() {
  static constexpr Family kRows[] = {
      {"glm", ReadGlm},
      {"glm4", ReadGlm4},
      {"cohere", ReadCohere},
      {"cohere2", ReadCohere2},
  };
  return kRows;
}

}  // namespace kvlathe
