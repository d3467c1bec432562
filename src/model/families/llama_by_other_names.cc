// Families that compute what Llama computes, with other keys, other names of tensors and other
// multipliers.
#include <algorithm>
#include <cmath>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// EXAONE 3.0 and 3.5. Its own files say num_layers, layer_norm_epsilon and activation_function.
Status ReadExaone(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kExaone;
  const auto key = [&](const char* own, const char* usual) {
    return fields.Has(own) ? own : usual;
  };
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c,
                                 {.n_kv_heads = 8,
                                  .max_positions = 4096,
                                  .eps_key = key("layer_norm_epsilon", "rms_norm_eps"),
                                  .eps = 1e-5,
                                  .names = {.layers = key("num_layers", "num_hidden_layers")}}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu", key("activation_function", "hidden_act")));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, {.default_theta = 500000}, *c, &c->attention.kinds[0].rope);
}

Status ReadInternLm3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c, {.n_kv_heads = 2, .head_dim = 128, .max_positions = 32768, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("qkv_bias", c->biases.qkv));
  KVL_ASSIGN_OR_RETURN(c->biases.o, fields.BoolOr("bias", c->biases.o));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("bias", c->biases.mlp));
  return ReadRope(fields, c);
}

// The first Qwen. Beyond seq_length it would scale RoPE and queries by the length, which is not
// computed: that is the longest context.
Status ReadQwen(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kQwen;
  KVL_RETURN_IF_ERROR(
      ReadShapes(fields, c, {.max_positions = 8192, .eps_key = "layer_norm_epsilon"}));
  KVL_ASSIGN_OR_RETURN(c->head_dim, fields.IntegerOr("kv_channels", c->head_dim, 1, kMaxDim));
  c->n_kv_heads = c->n_heads;
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  if (c->ffn_dim % 2 != 0) {
    return Error(StatusCode::kDataLoss,
                 "{}: 'intermediate_size' is {}; expected an even number, of gate and up together",
                 fields.where(), c->ffn_dim);
  }
  c->ffn_dim /= 2;
  KVL_ASSIGN_OR_RETURN(const int length, fields.IntegerOr("seq_length", 8192, 1, kMaxPositions));
  c->max_seq_len = std::min(c->max_seq_len, length);
  c->biases.qkv = true;
  KVL_ASSIGN_OR_RETURN(const bool has_no_more, fields.BoolOr("no_bias", true));
  c->biases.o = c->biases.mlp = !has_no_more;
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "scale_attn_weights", true));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "rotary_pct", 1, c));
  return ReadRope(fields, {.theta = "rotary_emb_base"}, *c, &c->attention.kinds[0].rope);
}

// MiniCPM 1B and 2B, and MiniCPM4 as far as it is dense.
Status ReadMiniCpm(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048, .is_tied = true}));
  KVL_ASSIGN_OR_RETURN(const int n_experts, fields.IntegerOr("num_experts", 0, 0, 1 << 20));
  if (n_experts > 0 || fields.Has("sparse_config")) {
    return Error(StatusCode::kUnimplemented, "{}: MiniCPM with '{}' is not supported",
                 fields.where(), n_experts > 0 ? "num_experts" : "sparse_config");
  }
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  const auto number = [&](const char* key) { return fields.NumberOr(key, 1, 1e-6, 1e6); };
  KVL_ASSIGN_OR_RETURN(const double of_embedding, number("scale_emb"));
  KVL_ASSIGN_OR_RETURN(const double of_depth, number("scale_depth"));
  KVL_ASSIGN_OR_RETURN(const double base_width, number("dim_model_base"));
  SetMultipliers(of_embedding, of_depth / std::sqrt(static_cast<double>(c->n_layers)), c);
  c->logit_scale = static_cast<float>(base_width / c->hidden_dim);
  return ReadRope(fields, c);
}

}  // namespace

std::span<const Family> LlamasByOtherNames() {
  static constexpr Family kRows[] = {
      {"exaone", ReadExaone}, {"internlm3", ReadInternLm3}, {"xverse", ReadLlama},
      {"qwen", ReadQwen},     {"minicpm", ReadMiniCpm},
  };
  return kRows;
}

}  // namespace kvlathe
