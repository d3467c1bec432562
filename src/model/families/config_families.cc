#include "model/families/config_families.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>
#include <vector>

namespace kvlathe {
namespace {

constexpr int kMaxDim = 1 << 20;
constexpr int kMaxHeads = 1024;
constexpr int kMaxPositions = 1 << 26;

// Names of the sizes: families disagree.
struct SizeNames {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
};

Status ReadSizes(const ConfigFields& fields, const SizeNames& names, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(c->n_layers, fields.Integer(names.layers, 1, 1024));
  KVL_ASSIGN_OR_RETURN(c->hidden_dim, fields.Integer(names.hidden, 16, kMaxDim));
  KVL_ASSIGN_OR_RETURN(c->n_heads, fields.Integer(names.heads, 1, kMaxHeads));
  KVL_ASSIGN_OR_RETURN(c->vocab_size, fields.Integer("vocab_size", 1, 1 << 24));
  return OkStatus();
}

Status CheckHeads(const ConfigFields& fields, const ModelConfig& c) {
  if (c.n_heads % c.n_kv_heads != 0) {
    return Error(StatusCode::kDataLoss, "{}: {} attention heads cannot share {} key/value heads",
                 fields.where(), c.n_heads, c.n_kv_heads);
  }
  if (c.head_dim % 16 != 0 || c.head_dim > 256 || c.head_dim == 0) {
    return Error(StatusCode::kUnimplemented,
                 "{}: head_dim {} is not supported; supported: multiples of 16 up to 256",
                 fields.where(), c.head_dim);
  }
  return OkStatus();
}

// head_dim of a family whose heads share hidden_dim out.
Status ShareHiddenOut(const ConfigFields& fields, ModelConfig* c) {
  if (c->hidden_dim % c->n_heads != 0) {
    return Error(StatusCode::kDataLoss, "{}: {} heads cannot share {} hidden dimensions",
                 fields.where(), c->n_heads, c->hidden_dim);
  }
  c->head_dim = c->hidden_dim / c->n_heads;
  return OkStatus();
}

Status RefuseActivation(const ConfigFields& fields, const char* key, const std::string& name,
                        const char* supported) {
  return Error(StatusCode::kUnimplemented, "{}: {} '{}' is not supported; supported: {}",
               fields.where(), key, name, supported);
}

// A switch that this build runs in one position only.
Status RequireSwitch(const ConfigFields& fields, const char* key, bool required) {
  KVL_ASSIGN_OR_RETURN(const bool value, fields.BoolOr(key, required));
  if (value == required) return OkStatus();
  return Error(StatusCode::kUnimplemented, "{}: '{}': {} is not supported", fields.where(), key,
               value);
}

Status ReadWindow(const ConfigFields& fields, ModelConfig* c) {
  int& window = c->attention.kinds[0].window;
  KVL_ASSIGN_OR_RETURN(window, fields.IntegerOr("sliding_window", 0, 1, kMaxPositions));
  if (window >= c->max_seq_len) window = 0;  // nothing ever leaves it
  return OkStatus();
}

// What Llama and the families after it share, but for the activation.
Status ReadShapes(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadSizes(fields, {}, c));
  KVL_ASSIGN_OR_RETURN(c->n_kv_heads,
                       fields.IntegerOr("num_key_value_heads", c->n_heads, 1, kMaxHeads));
  KVL_ASSIGN_OR_RETURN(c->head_dim,
                       fields.IntegerOr("head_dim", c->hidden_dim / c->n_heads, 1, kMaxDim));
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  KVL_ASSIGN_OR_RETURN(c->ffn_dim, fields.Integer("intermediate_size", 1, kMaxDim));
  KVL_ASSIGN_OR_RETURN(c->max_seq_len, fields.Integer("max_position_embeddings", 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(const double eps, fields.NumberOr("rms_norm_eps", 1e-6, 0, 1));
  c->norms.eps = static_cast<float>(eps);
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  return OkStatus();
}

Status ReadLlamaLike(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c));
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_act", "silu"));
  if (activation != "silu") return RefuseActivation(fields, "hidden_act", activation, "silu");
  return OkStatus();
}

Status ReadLlama(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_ASSIGN_OR_RETURN(const double fraction, fields.NumberOr("partial_rotary_factor", 1, 0, 1));
  if (fraction != 1) {
    return Error(StatusCode::kUnimplemented,
                 "{}: partial_rotary_factor {} is supported in phi3 only", fields.where(),
                 fraction);
  }
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, c);
}

Status ReadMistral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  return ReadWindow(fields, c);
}

Status ReadQwen2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->biases.qkv = true;
  c->biases.o = false;
  // Its window holds for some layers only.
  return RequireSwitch(fields, "use_sliding_window", false);
}

Status ReadQwen3(const ConfigFields& fields, ModelConfig* c) {
  // Its heads do not share hidden_size out.
  KVL_RETURN_IF_ERROR(fields.Integer("head_dim", 1, kMaxDim).status());
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->norms.of_qk = true;
  return RequireSwitch(fields, "use_sliding_window", false);
}

Status ReadPhi3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  c->layout = WeightLayout::kPhi3;
  KVL_ASSIGN_OR_RETURN(c->rotary_fraction, fields.NumberOr("partial_rotary_factor", 1, 0.01, 1));
  if (c->rope_dim() < 2 || c->rope_dim() % 2 != 0) {
    return Error(StatusCode::kUnimplemented,
                 "{}: partial_rotary_factor {} rotates {} channels; expected an even number",
                 fields.where(), c->rotary_fraction, c->rope_dim());
  }
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "attention_bias", false));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  return ReadRope(fields, c);
}

// Layers of type sliding_attention have the window and angles of their own.
Status ReadLayerTypes(const ConfigFields& fields, ModelConfig* c) {
  if (!fields.Has("layer_types")) {
    KVL_ASSIGN_OR_RETURN(const int period, fields.IntegerOr("sliding_window_pattern", 6, 1, 1024));
    for (int l = 0; l < c->n_layers; ++l) {
      c->attention.kind_of_layer.push_back((l + 1) % period == 0 ? 0 : 1);
    }
    return OkStatus();
  }
  const nlohmann::json& types = fields.at("layer_types");
  if (!types.is_array() || std::ssize(types) != c->n_layers) {
    return Error(StatusCode::kDataLoss, "{}: 'layer_types' is not a list of {} names",
                 fields.where(), c->n_layers);
  }
  for (const nlohmann::json& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return Error(StatusCode::kUnimplemented,
                   "{}: layer type {} is not supported; supported: sliding_attention, "
                   "full_attention",
                   fields.where(), type.dump());
    }
    c->attention.kind_of_layer.push_back(type == "full_attention" ? 0 : 1);
  }
  return OkStatus();
}

Status ReadGemma3Attention(const ConfigFields& fields, ModelConfig* c) {
  const RopeNames whole_names = {.default_theta = 1e6, .layer_type = "full_attention"};
  const RopeNames local_names = {
      .theta = "rope_local_base_freq", .scaling = "", .layer_type = "sliding_attention"};
  c->attention.kinds.resize(2);
  AttentionKind& whole = c->attention.kinds[0];
  AttentionKind& local = c->attention.kinds[1];
  KVL_RETURN_IF_ERROR(ReadRope(fields, whole_names, *c, &whole.rope));
  KVL_RETURN_IF_ERROR(ReadRope(fields, local_names, *c, &local.rope));
  KVL_ASSIGN_OR_RETURN(local.window, fields.Integer("sliding_window", 1, kMaxPositions));
  if (local.window >= c->max_seq_len) local.window = 0;  // nothing ever leaves it
  KVL_ASSIGN_OR_RETURN(const double scalar,
                       fields.NumberOr("query_pre_attn_scalar", 256, 1e-3, 1e6));
  c->query_scale = static_cast<float>(std::sqrt(c->head_dim / scalar));
  return ReadLayerTypes(fields, c);
}

Status ReadGemma3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(fields.Integer("head_dim", 1, kMaxDim).status());
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c));
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", true));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    KVL_ASSIGN_OR_RETURN(const double cap, fields.NumberOr(key, 0, 0, 1e6));
    if (cap == 0) continue;
    return Error(StatusCode::kUnimplemented, "{}: '{}' is not supported", fields.where(), key);
  }
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_bidirectional_attention", false));
  const std::string tanh = "gelu_pytorch_tanh";
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_activation", tanh));
  if (activation != tanh) {
    return RefuseActivation(fields, "hidden_activation", activation, tanh.c_str());
  }
  c->layout = WeightLayout::kGemma;
  c->mlp = MlpKind::kGeglu;
  c->norms.of_qk = c->norms.of_outputs = true;
  c->embedding_scale = std::sqrt(static_cast<float>(c->hidden_dim));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  return ReadGemma3Attention(fields, c);
}

Status ReadGpt2(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kGpt2;
  c->norms.kind = NormKind::kLayer;
  c->positions = PositionKind::kLearned;
  c->biases.qkv = c->biases.o = c->biases.mlp = true;
  KVL_RETURN_IF_ERROR(ReadSizes(fields, {"n_layer", "n_embd", "n_head"}, c));
  KVL_RETURN_IF_ERROR(ShareHiddenOut(fields, c));
  c->n_kv_heads = c->n_heads;
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  KVL_ASSIGN_OR_RETURN(c->ffn_dim, fields.IntegerOr("n_inner", 4 * c->hidden_dim, 1, 4 * kMaxDim));
  KVL_ASSIGN_OR_RETURN(const int old_context, fields.IntegerOr("n_ctx", 1024, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(c->max_seq_len,
                       fields.IntegerOr("n_positions", old_context, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(const double eps, fields.NumberOr("layer_norm_epsilon", 1e-5, 0, 1));
  c->norms.eps = static_cast<float>(eps);
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", true));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "scale_attn_weights", true));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "scale_attn_by_inverse_layer_idx", false));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "add_cross_attention", false));
  KVL_ASSIGN_OR_RETURN(const std::string activation,
                       fields.StringOr("activation_function", "gelu_new"));
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    c->mlp = MlpKind::kGeluTanh;
    return OkStatus();
  }
  c->mlp = MlpKind::kGelu;
  if (activation == "gelu") return OkStatus();
  return RefuseActivation(fields, "activation_function", activation,
                          "gelu_new, gelu_pytorch_tanh, gelu");
}

// Whether the key/value heads are one (7B), n_heads, or as many as num_kv_heads says (40B, 180B).
Status ReadFalconHeads(const ConfigFields& fields, bool is_new, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const bool multi_query, fields.BoolOr("multi_query", true));
  c->n_kv_heads = multi_query ? 1 : c->n_heads;
  if (is_new) {
    KVL_ASSIGN_OR_RETURN(c->n_kv_heads, fields.IntegerOr("num_kv_heads", c->n_heads, 1, kMaxHeads));
  }
  KVL_RETURN_IF_ERROR(ShareHiddenOut(fields, c));
  return CheckHeads(fields, *c);
}

Status ReadFalcon(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const bool alibi, fields.BoolOr("alibi", false));
  if (alibi) {
    return Error(StatusCode::kUnimplemented,
                 "{}: Falcon with alibi positions (falcon-rw) is not supported; supported: Falcon "
                 "with RoPE",
                 fields.where());
  }
  c->layout = WeightLayout::kFalcon;
  c->norms.kind = NormKind::kLayer;
  c->mlp = MlpKind::kGelu;
  KVL_RETURN_IF_ERROR(ReadSizes(fields, {}, c));
  KVL_ASSIGN_OR_RETURN(const bool is_new, fields.BoolOr("new_decoder_architecture", false));
  KVL_RETURN_IF_ERROR(ReadFalconHeads(fields, is_new, c));
  KVL_ASSIGN_OR_RETURN(c->parallel_block, fields.BoolOr("parallel_attn", true));
  KVL_ASSIGN_OR_RETURN(const int n_norms,
                       fields.IntegerOr("num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2));
  c->parallel_block |= is_new;
  c->shared_norm = c->parallel_block && n_norms == 1;
  if (c->parallel_block && !is_new && n_norms == 2) {
    return Error(StatusCode::kDataLoss,
                 "{}: two norms in the parallel block need new_decoder_architecture",
                 fields.where());
  }
  KVL_ASSIGN_OR_RETURN(c->ffn_dim,
                       fields.IntegerOr("ffn_hidden_size", 4 * c->hidden_dim, 1, 4 * kMaxDim));
  KVL_ASSIGN_OR_RETURN(c->max_seq_len,
                       fields.IntegerOr("max_position_embeddings", 2048, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(const double eps, fields.NumberOr("layer_norm_epsilon", 1e-5, 0, 1));
  c->norms.eps = static_cast<float>(eps);
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", true));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("bias", false));
  c->biases.o = c->biases.mlp = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("activation", "gelu"));
  if (activation != "gelu") return RefuseActivation(fields, "activation", activation, "gelu");
  return ReadRope(fields, c);
}

struct Family {
  std::string_view model_type;
  Status (*read)(const ConfigFields& fields, ModelConfig* config);
};

constexpr std::array kFamilies = {
    Family{"llama", ReadLlama}, Family{"mistral", ReadMistral},    Family{"qwen2", ReadQwen2},
    Family{"qwen3", ReadQwen3}, Family{"gemma3_text", ReadGemma3}, Family{"phi3", ReadPhi3},
    Family{"gpt2", ReadGpt2},   Family{"falcon", ReadFalcon},
};

}  // namespace

Status ReadFamily(const ConfigFields& fields, ModelConfig* config) {
  KVL_ASSIGN_OR_RETURN(config->model_type, fields.StringOr("model_type", ""));
  if (fields.Has("quantization_config")) {
    return Error(StatusCode::kUnimplemented,
                 "{}: quantised weights are not supported; use the BF16, F16 or F32 model",
                 fields.where());
  }
  for (const Family& family : kFamilies) {
    if (family.model_type == config->model_type) return family.read(fields, config);
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.model_type);
  return Error(StatusCode::kUnimplemented, "{}: model_type '{}' is not supported; supported: {}",
               fields.where(), config->model_type, fmt::join(known, ", "));
}

}  // namespace kvlathe
