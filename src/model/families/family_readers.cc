#include "model/families/family_readers.h"

namespace kvlathe {

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

Status ReadEpsilon(const ConfigFields& fields, const char* key, double fallback, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const double eps, fields.NumberOr(key, fallback, 1e-20, 1));
  c->norms.eps = static_cast<float>(eps);
  return OkStatus();
}

Status ReadShapes(const ConfigFields& fields, ModelConfig* c, const ShapeDefaults& defaults) {
  KVL_RETURN_IF_ERROR(ReadSizes(fields, defaults.names, c));
  const auto size_or = [](int of_class, bool is_null, int otherwise) {
    return of_class == 0 || is_null ? otherwise : of_class;
  };
  const int n_kv_heads =
      size_or(defaults.n_kv_heads, fields.IsNull("num_key_value_heads"), c->n_heads);
  KVL_ASSIGN_OR_RETURN(c->n_kv_heads,
                       fields.IntegerOr("num_key_value_heads", n_kv_heads, 1, kMaxHeads));
  const int head_dim =
      size_or(defaults.head_dim, fields.IsNull("head_dim"), c->hidden_dim / c->n_heads);
  KVL_ASSIGN_OR_RETURN(c->head_dim, fields.IntegerOr("head_dim", head_dim, 1, kMaxDim));
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  KVL_ASSIGN_OR_RETURN(c->ffn_dim, fields.Integer("intermediate_size", 1, kMaxDim));
  const bool has_positions = defaults.max_positions > 0 && !fields.Has("max_position_embeddings");
  c->max_seq_len = defaults.max_positions;
  if (!has_positions) {
    KVL_ASSIGN_OR_RETURN(c->max_seq_len,
                         fields.Integer("max_position_embeddings", 1, kMaxPositions));
  }
  KVL_RETURN_IF_ERROR(ReadEpsilon(fields, defaults.eps_key, defaults.eps, c));
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings,
                       fields.BoolOr("tie_word_embeddings", defaults.is_tied));
  return OkStatus();
}

Status ReadPartialRotary(const ConfigFields& fields, const char* key, double fallback,
                         ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(c->rotary_fraction, fields.NumberOr(key, fallback, 0.01, 1));
  if (fields.Has("rope_parameters") && fields.at("rope_parameters").is_object()) {
    key = "partial_rotary_factor";
    const ConfigFields inner(fields.at("rope_parameters"), fields.where());
    KVL_ASSIGN_OR_RETURN(c->rotary_fraction, inner.NumberOr(key, c->rotary_fraction, 0.01, 1));
  }
  if (c->rope_dim() > 0 && c->rope_dim() % 4 == 0) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "{}: {} {} rotates {} channels of a head; supported: multiples of 4", fields.where(),
               key, c->rotary_fraction, c->rope_dim());
}

Status RequireActivation(const ConfigFields& fields, const std::string& name, const char* key) {
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr(key, name));
  if (activation == name) return OkStatus();
  return RefuseActivation(fields, key, activation, name.c_str());
}

Status ReadGelu(const ConfigFields& fields, const char* fallback, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_act", fallback));
  c->mlp = MlpKind::kGelu;
  if (activation == "gelu") return OkStatus();
  c->mlp = MlpKind::kGeluTanh;
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    if (activation == name) return OkStatus();
  }
  return RefuseActivation(fields, "hidden_act", activation,
                          "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast");
}

Status ReadLlamaLike(const ConfigFields& fields, ModelConfig* c, const ShapeDefaults& defaults) {
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c, defaults));
  return RequireActivation(fields, "silu");
}

void SetMultipliers(double of_embedding, double of_residual, ModelConfig* c) {
  c->embedding_scale = static_cast<float>(of_embedding / of_residual);
  c->norms.eps = static_cast<float>(c->norms.eps / (of_residual * of_residual));
}

Status ReadAttentionBias(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  return OkStatus();
}

}  // namespace kvlathe
