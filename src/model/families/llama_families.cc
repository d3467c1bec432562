// Llama and the families that differ from it by switches, windows, positions and multipliers.
#include <algorithm>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// Where layer_types does not say it, the layers from max_window_layers on have the window.
Status ReadQwenWindows(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const bool has_windows, fields.BoolOr("use_sliding_window", false));
  if (!has_windows || fields.IsNull("sliding_window")) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  if (slides.empty()) {
    KVL_ASSIGN_OR_RETURN(const int first, fields.IntegerOr("max_window_layers", 28, 0, 1 << 20));
    for (int l = 0; l < c->n_layers; ++l) slides.push_back(l >= first);
  }
  const RopeConfig rope = c->attention.kinds[0].rope;
  SetLayerKinds(rope, window, std::vector<bool>(c->n_layers, true), slides, c);
  return OkStatus();
}

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

// What transformers assumes of a Ministral 3 that says nothing of RoPE.
const nlohmann::json& DefaultRope() {
  static const nlohmann::json rope = {{"rope_type", "yarn"},
                                      {"rope_theta", 1e6},
                                      {"factor", 16},
                                      {"original_max_position_embeddings", 16384},
                                      {"beta_fast", 32},
                                      {"beta_slow", 1},
                                      {"mscale", 1},
                                      {"mscale_all_dim", 1},
                                      {"llama_4_scaling_beta", 0.1}};
  return rope;
}

}  // namespace

Status ReadLlama(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, c);
}

namespace {

Status ReadQwen2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->biases.qkv = true;
  c->biases.o = false;
  return ReadQwenWindows(fields, c);
}

}  // namespace

Status ReadQwen3(const ConfigFields& fields, ModelConfig* c) {
  // Its heads do not share hidden_size out.
  KVL_RETURN_IF_ERROR(fields.Integer("head_dim", 1, kMaxDim).status());
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->norms.of_qk = QkNormConfig();
  return ReadQwenWindows(fields, c);
}

namespace {

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

Status ReadMistral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  return ReadWindow(fields, c);
}

Status ReadMinistral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  if (!fields.Has("sliding_window")) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const int window, fields.Integer("sliding_window", 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  slides.resize(c->n_layers, true);  // without layer_types all have the window
  const RopeConfig rope = c->attention.kinds[0].rope;
  SetLayerKinds(rope, window, std::vector<bool>(c->n_layers, true), slides, c);
  return OkStatus();
}

Status ReadMinistral3(const ConfigFields& fields, ModelConfig* c) {
  const char* key = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.Has(key)) {
    nlohmann::json whole = fields.object();
    whole["rope_parameters"] = DefaultRope();
    return ReadMinistral3(ConfigFields(whole, fields.where()), c);
  }
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c, {.n_kv_heads = 8, .head_dim = 128, .max_positions = 262144, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  const ConfigFields rope(fields.at(key), fields.where());
  AttentionKind& kind = c->attention.kinds[0];
  KVL_ASSIGN_OR_RETURN(kind.query_growth, rope.NumberOr("llama_4_scaling_beta", 0, 0, 1e3));
  KVL_ASSIGN_OR_RETURN(kind.growth_context, rope.NumberOr("original_max_position_embeddings",
                                                          c->max_seq_len, 1, kMaxPositions));
  return OkStatus();
}

}  // namespace

Status ReadGranite(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  const auto multiplier = [&](const char* key) { return fields.NumberOr(key, 1, 1e-6, 1e6); };
  KVL_ASSIGN_OR_RETURN(const double of_embedding, multiplier("embedding_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_residual, multiplier("residual_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_scores, multiplier("attention_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_logits, multiplier("logits_scaling"));
  SetMultipliers(of_embedding, of_residual, c);
  c->score_scale = static_cast<float>(of_scores);
  c->logit_scale = static_cast<float>(1 / of_logits);
  return ReadRope(fields, c);
}

namespace {

// Granite with windows, sink logits, and a theta of each layer's own; 0: its positions do not turn.
Status ReadGraniteSwa(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGranite(fields, c));
  c->has_sink_logits = true;
  const int n_layers = c->n_layers;
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, n_layers));
  for (int l = 0; std::ssize(slides) < n_layers; ++l) slides.push_back(l % 4 != 0);
  KVL_ASSIGN_OR_RETURN(const int window, fields.IntegerOr("sliding_window", 128, 1, kMaxPositions));
  RopeConfig rope = c->attention.kinds[0].rope;
  std::vector<bool> turns(n_layers, true);
  if (fields.Has("layer_rope_theta")) {
    KVL_ASSIGN_OR_RETURN(const std::vector<double> thetas,
                         fields.Numbers("layer_rope_theta", n_layers, 0, 1e12));
    rope.theta = *std::ranges::max_element(thetas);
    for (int l = 0; l < n_layers; ++l) {
      turns[l] = thetas[l] > 0;
      if (!turns[l] || thetas[l] == rope.theta) continue;
      return Error(StatusCode::kUnimplemented,
                   "{}: 'layer_rope_theta' has {} and {}; supported: one theta, and 0",
                   fields.where(), thetas[l], rope.theta);
    }
  }
  SetLayerKinds(rope, window, turns, slides, c);
  return OkStatus();
}

}  // namespace

std::span<const Family> LlamaFamilies() {
  static constexpr Family kRows[] = {
      {"llama", ReadLlama},
      {"mistral", ReadMistral},
      {"qwen2", ReadQwen2},
      {"qwen3", ReadQwen3},
      {"smollm3", ReadSmolLm3},
      {"granite", ReadGranite},
      {"granite_swa", ReadGraniteSwa},
      {"ministral", ReadMinistral},
      {"ministral3", ReadMinistral3},
  };
  return kRows;
}

}  // namespace kvlathe
