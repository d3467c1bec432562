// OLMo 2, OLMo 3 and EXAONE 4 normalise what blocks put out, and nothing that they read.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

void NormaliseOutputs(QkNormConfig::Over over, ModelConfig* c) {
  c->norms.of_inputs = false;
  c->norms.of_outputs = true;
  c->norms.of_qk = QkNormConfig{.over = over};
}

// Every so many layers see everything: layer_types, or a number (the last of so many), or a text
// with L for each layer that has a window and G for each that has none, over and over.
StatusOr<std::vector<bool>> ReadHybridLayers(const ConfigFields& fields, int n_layers) {
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, n_layers));
  if (!slides.empty()) return slides;
  const char* const key = "sliding_window_pattern";
  if (fields.Has(key) && fields.at(key).is_string()) {
    const auto pattern = fields.at(key).get<std::string>();
    if (pattern.empty() || pattern.find_first_not_of("LG") != std::string::npos) {
      return Error(StatusCode::kDataLoss, "{}: '{}' is \"{}\"; expected letters L and G",
                   fields.where(), key, pattern);
    }
    for (int l = 0; l < n_layers; ++l) {
      slides.push_back(pattern[l % pattern.size()] == 'L' && l + 1 < n_layers);
    }
    return slides;
  }
  KVL_ASSIGN_OR_RETURN(const int period, fields.IntegerOr(key, 4, 1, 1024));
  for (int l = 0; l < n_layers; ++l) slides.push_back((l + 1) % period != 0);
  return slides;
}

Status ReadOlmo2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  NormaliseOutputs(QkNormConfig::Over::kAllHeads, c);
  return ReadRope(fields, c);
}

Status ReadOlmo3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  NormaliseOutputs(QkNormConfig::Over::kAllHeads, c);
  // Layers with a window turn as if the context had never been stretched.
  AttentionKind whole, local;
  KVL_RETURN_IF_ERROR(
      ReadRope(fields, {.default_theta = 5e5, .layer_type = "full_attention"}, *c, &whole.rope));
  KVL_RETURN_IF_ERROR(
      ReadRope(fields, {.default_theta = 5e5, .scaling = "", .layer_type = "sliding_attention"}, *c,
               &local.rope));
  if (fields.Has("rope_parameters") &&
      !fields.at("rope_parameters").contains("sliding_attention")) {
    local.rope = {.theta = local.rope.theta};
  }
  KVL_ASSIGN_OR_RETURN(local.window, fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  if (local.window >= c->max_seq_len) local.window = 0;  // nothing ever leaves it
  c->attention.kinds = {whole, local};
  return ReadLayerTypes(fields, 4, c);
}

Status ReadExaone4(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(
      ReadLlamaLike(fields, c, {.n_kv_heads = 32, .max_positions = 2048, .eps = 1e-5}));
  NormaliseOutputs(QkNormConfig::Over::kHead, c);
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  if (fields.IsNull("sliding_window")) return OkStatus();  // all layers see everything, and turn
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(const std::vector<bool> slides, ReadHybridLayers(fields, c->n_layers));
  const RopeConfig rope = c->attention.kinds[0].rope;
  SetLayerKinds(rope, window, /*turns=*/slides, slides, c);
  return OkStatus();
}

}  // namespace

std::span<const Family> PostNormFamilies() {
  static constexpr Family kRows[] = {
      {"olmo2", ReadOlmo2},
      {"olmo3", ReadOlmo3},
      {"exaone4", ReadExaone4},
  };
  return kRows;
}

}  // namespace kvlathe
