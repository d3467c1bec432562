// The architectures of GGUF files with experts.
#include "model/families/gguf/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// What a family calls the sizes of its experts in config.json.
struct ExpertFields {
  const char* count = "num_experts";
  const char* used = "num_experts_per_tok";
  const char* ffn = "moe_intermediate_size";
};

Status CopyCounts(const ExpertFields& fields, const Context& c) {
  KVL_RETURN_IF_ERROR(c.keys.Copy("expert_count", fields.count, c.config));
  return c.keys.Copy("expert_used_count", fields.used, c.config);
}

// The width of experts may be that of the MLP, shared out among those that a token meets.
Status CopyExperts(const ExpertFields& fields, const Context& c) {
  KVL_RETURN_IF_ERROR(CopyCounts(fields, c));
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("expert_feed_forward_length", fields.ffn, c.config));
  if (c.keys.Has("expert_feed_forward_length")) return OkStatus();
  const int64_t n_used = c.config->at(fields.used).get<int64_t>();
  const int64_t ffn_dim = c.config->at("intermediate_size").get<int64_t>();
  (*c.config)[fields.ffn] = n_used > 0 ? ffn_dim / n_used : 0;
  return OkStatus();
}

Status CopyGroups(const Context& c) {
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("expert_group_count", "n_group", c.config));
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("expert_group_used_count", "topk_group", c.config));
  // Files of models without groups may say 0.
  for (const char* field : {"n_group", "topk_group"}) {
    if (c.config->contains(field) && c.config->at(field) == 0) c.config->erase(field);
  }
  return OkStatus();
}

Status CopyWeights(const Context& c) {
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("expert_weights_scale", "routed_scaling_factor", c.config));
  if (c.config->value("routed_scaling_factor", 1.0) == 0) c.config->erase("routed_scaling_factor");
  KVL_ASSIGN_OR_RETURN((*c.config)["norm_topk_prob"],
                       c.file.BoolOr(c.keys.Name("expert_weights_norm"), false));
  return OkStatus();
}

// Layers behind the last one guess tokens further ahead; they take no part in the model.
Status LeaveOutGuessingLayers(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t n,
                       c.file.IntegerOr(c.keys.Name("nextn_predict_layers"), 0, 0, 1024));
  (*c.config)["num_hidden_layers"] = c.config->at("num_hidden_layers").get<int64_t>() - n;
  return OkStatus();
}

// The tensor of the first layer that has it; null: none has.
const GgufTensor* FindInLayers(const Context& c, std::string_view name) {
  const int64_t n_layers = c.config->at("num_hidden_layers").get<int64_t>();
  for (int64_t l = 0; l < n_layers && l < 1024; ++l) {
    const GgufTensor* const tensor = c.file.FindTensor(fmt::format("blk.{}.{}", l, name));
    if (tensor != nullptr) return tensor;
  }
  return nullptr;
}

// The width of the MLP beside the experts.
int64_t SharedWidth(const Context& c) {
  const GgufTensor* const up = FindInLayers(c, "ffn_up_shexp.weight");
  return up == nullptr || up->shape.empty() ? 0 : up->shape.front();
}

// What kind of scores a router makes: 1 is softmax, 2 sigmoid.
StatusOr<bool> HasSigmoid(const Context& c, int64_t fallback) {
  const std::string key = c.keys.Name("expert_gating_func");
  KVL_ASSIGN_OR_RETURN(int64_t kind, c.file.IntegerOr(key, fallback, 0, kMaxSize));
  if (kind == 0) kind = fallback;
  if (kind != 1 && kind != 2) {
    return Error(StatusCode::kUnimplemented, "{}: '{}' is {}; supported: 1 (softmax), 2 (sigmoid)",
                 c.file.path(), key, kind);
  }
  return kind == 2;
}

Status ReadQwen2Moe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(CopyExperts({}, c));
  (*c.config)["model_type"] = "qwen2_moe";
  (*c.config)["norm_topk_prob"] = false;
  (*c.config)["shared_expert_intermediate_size"] = SharedWidth(c);
  return OkStatus();
}

Status ReadQwen3Moe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(CopyExperts({}, c));
  (*c.config)["model_type"] = "qwen3_moe";
  (*c.config)["norm_topk_prob"] = true;
  return OkStatus();
}

Status ReadOlmoe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(CopyCounts({}, c));
  (*c.config)["model_type"] = "olmoe";
  (*c.config)["norm_topk_prob"] = false;
  return OkStatus();
}

Status ReadGraniteMoe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadGraniteLike(c));
  KVL_RETURN_IF_ERROR(CopyCounts({.count = "num_local_experts"}, c));
  const int64_t shared = SharedWidth(c);
  (*c.config)["model_type"] = shared > 0 ? "granitemoeshared" : "granitemoe";
  (*c.config)["shared_intermediate_size"] = shared;
  return OkStatus();
}

Status ReadGptOss(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  KVL_RETURN_IF_ERROR(CopyExperts({.count = "num_local_experts", .ffn = "intermediate_size"}, c));
  config["model_type"] = "gpt_oss";
  // The file cannot say it: the ramp of the model's YaRN does not end at whole pairs.
  if (config.contains("rope_scaling")) config["rope_scaling"]["truncate"] = false;
  return OkStatus();
}

Status ReadGlm4Moe(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  config["partial_rotary_factor"] = 1;
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_RETURN_IF_ERROR(LeaveOutGuessingLayers(c));
  KVL_RETURN_IF_ERROR(CopyExperts({.count = "n_routed_experts"}, c));
  KVL_RETURN_IF_ERROR(CopyGroups(c));
  KVL_RETURN_IF_ERROR(CopyWeights(c));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("leading_dense_block_count", "first_k_dense_replace", &config));
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("expert_shared_count", "n_shared_experts", &config));
  KVL_ASSIGN_OR_RETURN(const bool is_sigmoid, HasSigmoid(c, 2));
  if (!is_sigmoid) {
    return Error(StatusCode::kUnimplemented, "{}: '{}' is 1; a GLM 4 with experts has sigmoids (2)",
                 c.file.path(), c.keys.Name("expert_gating_func"));
  }
  config["model_type"] = "glm4_moe";
  config["use_qk_norm"] = c.HasTensor("blk.0.attn_q_norm.weight");
  return OkStatus();
}

Status ReadErnieMoe(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(CopyExperts({.count = "moe_num_experts", .used = "moe_k"}, c));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("leading_dense_block_count", "moe_layer_start_index", &config));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("interleave_moe_layer_step", "moe_layer_interval", &config));
  const int64_t ffn_dim = config.at("moe_intermediate_size").get<int64_t>();
  const int64_t shared = SharedWidth(c);
  if (shared > 0 && (ffn_dim == 0 || shared % ffn_dim != 0)) {
    return Error(StatusCode::kDataLoss,
                 "{}: the MLP beside the experts has {} columns, which is not a multiple of their "
                 "{}",
                 c.file.path(), shared, ffn_dim);
  }
  config["moe_num_shared_experts"] = shared == 0 ? 0 : shared / ffn_dim;
  config["moe_use_aux_free"] = FindInLayers(c, "exp_probs_b.bias") != nullptr;
  config["model_type"] = "ernie4_5_moe";
  return OkStatus();
}

// The file calls its epsilon that of RMS norms, which the model's are not.
Status ReadPhiMoe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  KVL_RETURN_IF_ERROR(CopyCounts({.count = "num_local_experts"}, c));
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("rope.scaling.original_context_length",
                                         "original_max_position_embeddings", c.config));
  (*c.config)["model_type"] = "phimoe";
  (*c.config)["lm_head_bias"] = c.HasTensor("output.bias");
  return OkStatus();
}

Status ReadBailingMoe2(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_RETURN_IF_ERROR(LeaveOutGuessingLayers(c));
  KVL_RETURN_IF_ERROR(CopyExperts({}, c));
  KVL_RETURN_IF_ERROR(CopyGroups(c));
  KVL_RETURN_IF_ERROR(CopyWeights(c));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("leading_dense_block_count", "first_k_dense_replace", &config));
  KVL_ASSIGN_OR_RETURN(const bool is_sigmoid, HasSigmoid(c, 1));
  config["score_function"] = is_sigmoid ? "sigmoid" : "softmax";
  config["moe_router_enable_expert_bias"] = FindInLayers(c, "exp_probs_b.bias") != nullptr;
  const int64_t shared = SharedWidth(c);
  config["num_shared_experts"] = shared > 0 ? 1 : 0;
  if (shared > 0) config["moe_shared_expert_intermediate_size"] = shared;
  config["use_qk_norm"] = c.HasTensor("blk.0.attn_q_norm.weight");
  config["model_type"] = "bailing_moe_v2";
  return OkStatus();
}

}  // namespace

Status ReadMixtral(const Context& c) {
  (*c.config)["model_type"] = "mixtral";
  return CopyCounts({.count = "num_local_experts"}, c);
}

std::span<const Architecture> ExpertFamilies() {
  static constexpr Architecture kRows[] = {
      {"qwen2moe", ReadQwen2Moe},
      {"qwen3moe", ReadQwen3Moe},
      {"olmoe", ReadOlmoe},
      {"granitemoe", ReadGraniteMoe, true},
      {"gpt-oss", ReadGptOss},
      {"glm4moe", ReadGlm4Moe},
      {"ernie4_5-moe", ReadErnieMoe, true},
      {"phimoe", ReadPhiMoe},
      {"bailingmoe2", ReadBailingMoe2},
  };
  return kRows;
}

}  // namespace kvlathe::gguf
