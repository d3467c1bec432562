// Families with experts.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// Layers with experts of Qwen: every so many, but for those that the list names.
Status ReadQwenLayers(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const int step, fields.IntegerOr("decoder_sparse_step", 1, 1, 1024));
  std::vector<bool>& of_layer = c->experts->of_layer;
  for (int l = 0; l < c->n_layers; ++l) of_layer[l] = (l + 1) % step == 0;
  if (fields.Has("mlp_only_layers")) {
    const nlohmann::json& dense = fields.at("mlp_only_layers");
    if (!dense.is_array()) {
      return Error(StatusCode::kDataLoss, "{}: 'mlp_only_layers' is not a list", fields.where());
    }
    for (const nlohmann::json& layer : dense) {
      const int64_t l = layer.is_number_integer() ? layer.get<int64_t>() : -1;
      if (l < 0 || l >= c->n_layers) {
        return Error(StatusCode::kDataLoss, "{}: 'mlp_only_layers': {} is no layer of {}",
                     fields.where(), layer.dump(), c->n_layers);
      }
      of_layer[l] = false;
    }
  }
  DropUnusedExperts(c);
  return OkStatus();
}

// What Phi-3.5-MoE multiplies turned rows by is not LongRope's own number but the file's.
Status ReadOwnAmplitude(const ConfigFields& fields, ModelConfig* c) {
  RopeConfig& rope = c->attention.kinds[0].rope;
  if (rope.scaling != RopeConfig::Scaling::kLongRope) return OkStatus();
  const char* const object = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const ConfigFields inner(fields.at(object), fields.where());
  KVL_ASSIGN_OR_RETURN(const double of_short,
                       inner.NumberOr("short_mscale", rope.amplitude, 1e-3, 1e3));
  KVL_ASSIGN_OR_RETURN(rope.amplitude, inner.NumberOr("long_mscale", of_short, 1e-3, 1e3));
  if (of_short != rope.amplitude) {
    return Error(StatusCode::kUnimplemented,
                 "{}: short_mscale {} and long_mscale {} differ; supported: one for both",
                 fields.where(), of_short, rope.amplitude);
  }
  return OkStatus();
}

// Routers and shared experts as DeepSeek-V3 has them.
Status ReadDeepSeekExperts(const ConfigFields& fields, bool normalises, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.count = "n_routed_experts"}, c));
  ExpertsConfig& experts = *c->experts;
  experts.score = ExpertsConfig::Score::kSigmoid;
  experts.has_choice_bias = true;
  experts.min_sum = 1e-20f;
  experts.adds_min_sum = true;
  KVL_ASSIGN_OR_RETURN(experts.normalises, fields.BoolOr("norm_topk_prob", normalises));
  KVL_ASSIGN_OR_RETURN(const double scale, fields.NumberOr("routed_scaling_factor", 1, 1e-6, 1e6));
  experts.scale = static_cast<float>(scale);
  KVL_ASSIGN_OR_RETURN(const int n_shared, fields.IntegerOr("n_shared_experts", 1, 0, 64));
  experts.shared_ffn_dim = n_shared * experts.ffn_dim;
  KVL_RETURN_IF_ERROR(ReadExpertGroups(fields, c));
  KVL_RETURN_IF_ERROR(ReadDenseLayers(fields, "first_k_dense_replace", c));
  return OkStatus();
}

Status ReadMixtral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  c->layout = WeightLayout::kMixtral;
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.ffn = "intermediate_size"}, c));
  c->experts->normalises = true;
  return OkStatus();
}

Status ReadQwen2Moe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("qkv_bias", true));
  c->biases.o = false;
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_sliding_window", false));
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {}, c));
  ExpertsConfig& experts = *c->experts;
  KVL_ASSIGN_OR_RETURN(experts.normalises, fields.BoolOr("norm_topk_prob", false));
  KVL_ASSIGN_OR_RETURN(experts.shared_ffn_dim,
                       fields.IntegerOr("shared_expert_intermediate_size", 0, 0, kMaxDim));
  experts.has_shared_gate = experts.shared_ffn_dim > 0;
  return ReadQwenLayers(fields, c);
}

Status ReadQwen3Moe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadQwen3(fields, c));
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {}, c));
  KVL_ASSIGN_OR_RETURN(c->experts->normalises, fields.BoolOr("norm_topk_prob", false));
  return ReadQwenLayers(fields, c);
}

Status ReadOlmoe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  if (fields.Has("clip_qkv")) {
    return Error(StatusCode::kUnimplemented, "{}: clip_qkv is not supported", fields.where());
  }
  c->norms.of_qk = QkNormConfig{.over = QkNormConfig::Over::kAllHeads};
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.ffn = "intermediate_size"}, c));
  KVL_ASSIGN_OR_RETURN(c->experts->normalises, fields.BoolOr("norm_topk_prob", false));
  return OkStatus();
}

Status ReadGraniteMoe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGranite(fields, c));
  c->layout = WeightLayout::kGraniteMoe;
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.ffn = "intermediate_size"}, c));
  c->experts->score = ExpertsConfig::Score::kSoftmaxOfChosen;
  if (c->model_type != "granitemoeshared") return OkStatus();
  KVL_ASSIGN_OR_RETURN(c->experts->shared_ffn_dim,
                       fields.IntegerOr("shared_intermediate_size", 0, 0, kMaxDim));
  return OkStatus();
}

Status ReadGptOss(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(const double limit, fields.NumberOr("swiglu_limit", 7, 0, 1e6));
  KVL_ASSIGN_OR_RETURN(const double slope, fields.NumberOr("swiglu_alpha", 1.702, 0, 1e6));
  if (limit != 7 || slope != 1.702) {
    return Error(StatusCode::kUnimplemented,
                 "{}: swiglu_limit {} with swiglu_alpha {} is not supported; supported: 7 with "
                 "1.702",
                 fields.where(), limit, slope);
  }
  c->layout = WeightLayout::kGptOss;
  c->mlp = MlpKind::kClampedSwiglu;
  c->has_sink_logits = true;
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  c->attention.kinds.push_back(c->attention.kinds[0]);
  KVL_ASSIGN_OR_RETURN(c->attention.kinds[1].window,
                       fields.IntegerOr("sliding_window", 128, 1, kMaxPositions));
  KVL_RETURN_IF_ERROR(ReadLayerTypes(fields, 2, c));
  KVL_RETURN_IF_ERROR(ReadExperts(
      fields,
      {.count = "num_local_experts",
       .other_count = "num_experts",
       .used = fields.Has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token",
       .ffn = "intermediate_size"},
      c));
  c->experts->score = ExpertsConfig::Score::kSoftmaxOfChosen;
  c->experts->has_router_bias = true;
  c->experts->has_biases = true;
  return OkStatus();
}

Status ReadGlm4Moe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.5, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  KVL_ASSIGN_OR_RETURN(const bool has_norms, fields.BoolOr("use_qk_norm", false));
  if (has_norms) c->norms.of_qk = QkNormConfig();
  KVL_RETURN_IF_ERROR(ReadDeepSeekExperts(fields, /*normalises=*/true, c));
  DropUnusedExperts(c);
  return OkStatus();
}

// dots.llm1: layers from max_window_layers on have a window.
Status ReadDots1(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  c->norms.of_qk = QkNormConfig();
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  KVL_ASSIGN_OR_RETURN(const int first,
                       fields.IntegerOr("max_window_layers", 62, 0, kMaxPositions));
  for (int l = 0; std::ssize(slides) < c->n_layers; ++l) slides.push_back(l >= first);
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  const std::vector<bool> turns(c->n_layers, true);
  SetLayerKinds(c->attention.kinds[0].rope, window, turns, slides, c);
  KVL_RETURN_IF_ERROR(ReadDeepSeekExperts(fields, /*normalises=*/false, c));
  DropUnusedExperts(c);
  return OkStatus();
}

Status ReadErnieMoe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_ASSIGN_OR_RETURN(const bool has_biases, fields.BoolOr("use_bias", false));
  c->biases = {.qkv = has_biases, .o = has_biases, .mlp = has_biases};
  if (has_biases) {
    return Error(StatusCode::kUnimplemented, "{}: use_bias is not supported with experts",
                 fields.where());
  }
  c->layout = WeightLayout::kErnieMoe;
  c->has_neighbour_pairs = true;
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.count = "moe_num_experts", .used = "moe_k"}, c));
  ExpertsConfig& experts = *c->experts;
  KVL_ASSIGN_OR_RETURN(experts.has_choice_bias, fields.BoolOr("moe_use_aux_free", true));
  experts.normalises = true;
  KVL_ASSIGN_OR_RETURN(const double min_sum, fields.NumberOr("moe_norm_min", 1e-12, 0, 1));
  experts.min_sum = static_cast<float>(min_sum);
  KVL_ASSIGN_OR_RETURN(const int n_shared, fields.IntegerOr("moe_num_shared_experts", 0, 0, 64));
  experts.shared_ffn_dim = n_shared * experts.ffn_dim;
  KVL_ASSIGN_OR_RETURN(const int first, fields.IntegerOr("moe_layer_start_index", 1, 0, 1024));
  KVL_ASSIGN_OR_RETURN(const int last, fields.IntegerOr("moe_layer_end_index", -1, -1, 1024));
  KVL_ASSIGN_OR_RETURN(const int interval, fields.IntegerOr("moe_layer_interval", 1, 1, 1024));
  for (int l = 0; l < c->n_layers; ++l) {
    experts.of_layer[l] = (l + 1) % interval == 0 && l >= first && (last < 0 || l <= last);
  }
  DropUnusedExperts(c);
  return OkStatus();
}

Status ReadPhiMoe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.head, fields.BoolOr("lm_head_bias", false));
  c->layout = WeightLayout::kMixtral;
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(ReadOwnAmplitude(fields, c));
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {.ffn = "intermediate_size"}, c));
  if (c->experts->n_used != 2) {
    return Error(StatusCode::kUnimplemented,
                 "{}: 'num_experts_per_tok' is {}; the router of {} chooses 2", fields.where(),
                 c->experts->n_used, c->model_type);
  }
  c->experts->score = ExpertsConfig::Score::kSparseMixer;
  KVL_ASSIGN_OR_RETURN(const double jitter, fields.NumberOr("router_jitter_noise", 0.01, 0, 1));
  c->experts->mixer_jitter = static_cast<float>(jitter);
  return OkStatus();
}

Status ReadBailingMoe(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 1, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("use_qkv_bias", false));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_bias", false));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_rmsnorm", true));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "norm_head", false));
  KVL_ASSIGN_OR_RETURN(const bool has_norms, fields.BoolOr("use_qk_norm", false));
  if (has_norms) c->norms.of_qk = QkNormConfig();
  c->layout = WeightLayout::kBailingMoe;
  KVL_RETURN_IF_ERROR(ReadExperts(fields, {}, c));
  ExpertsConfig& experts = *c->experts;
  KVL_ASSIGN_OR_RETURN(const std::string score, fields.StringOr("score_function", "softmax"));
  if (score != "sigmoid" && score != "softmax") {
    return RefuseActivation(fields, "score_function", score, "softmax, sigmoid");
  }
  if (score == "sigmoid") experts.score = ExpertsConfig::Score::kSigmoid;
  KVL_ASSIGN_OR_RETURN(experts.has_choice_bias,
                       fields.BoolOr("moe_router_enable_expert_bias", false));
  experts.min_sum = 1e-20f;
  experts.adds_min_sum = true;
  KVL_ASSIGN_OR_RETURN(experts.normalises, fields.BoolOr("norm_topk_prob", true));
  KVL_ASSIGN_OR_RETURN(const double scale, fields.NumberOr("routed_scaling_factor", 1, 1e-6, 1e6));
  experts.scale = static_cast<float>(scale);
  KVL_ASSIGN_OR_RETURN(const int n_shared, fields.IntegerOr("num_shared_experts", 0, 0, 64));
  KVL_ASSIGN_OR_RETURN(const int shared_ffn, fields.IntegerOr("moe_shared_expert_intermediate_size",
                                                              experts.ffn_dim, 1, kMaxDim));
  experts.shared_ffn_dim = n_shared * shared_ffn;
  KVL_RETURN_IF_ERROR(ReadExpertGroups(fields, c));
  KVL_RETURN_IF_ERROR(ReadDenseLayers(fields, "first_k_dense_replace", c));
  DropUnusedExperts(c);
  return OkStatus();
}

Status ReadMiniMaxM2(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kMixtral;
  KVL_RETURN_IF_ERROR(
      ReadLlamaLike(fields, c, {.n_kv_heads = 8, .head_dim = 128, .max_positions = 196608}));
  KVL_ASSIGN_OR_RETURN(const int rotary_dim,
                       fields.IntegerOr("rotary_dim", c->head_dim, 2, c->head_dim));
  const double fraction = static_cast<double>(rotary_dim) / c->head_dim;
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", fraction, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, {.default_theta = 5e6}, *c, &c->attention.kinds[0].rope));
  c->norms.of_qk = QkNormConfig{.over = QkNormConfig::Over::kAllHeads};
  KVL_RETURN_IF_ERROR(ReadExperts(
      fields,
      {.count = "num_local_experts", .other_count = "num_experts", .ffn = "intermediate_size"}, c));
  c->experts->score = ExpertsConfig::Score::kSigmoid;
  c->experts->has_choice_bias = c->experts->normalises = true;
  return OkStatus();
}

}  // namespace

std::span<const Family> ExpertFamilies() {
  static constexpr Family kRows[] = {
      {"mixtral", ReadMixtral},
      {"qwen2_moe", ReadQwen2Moe},
      {"qwen3_moe", ReadQwen3Moe},
      {"olmoe", ReadOlmoe},
      {"granitemoe", ReadGraniteMoe},
      {"granitemoeshared", ReadGraniteMoe},
      {"gpt_oss", ReadGptOss},
      {"glm4_moe", ReadGlm4Moe},
      {"dots1", ReadDots1},
      {"minimax_m2", ReadMiniMaxM2},
      {"dots1", ReadDots1},
      {"ernie4_5_moe", ReadErnieMoe},
      {"phimoe", ReadPhiMoe},
      {"bailing_moe", ReadBailingMoe},
      {"bailing_moe_v2", ReadBailingMoe},
  };
  return kRows;
}

}  // namespace kvlathe
