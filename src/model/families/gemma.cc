#include <cmath>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

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
  c->score_scale = static_cast<float>(1 / std::sqrt(scalar));
  return ReadLayerTypes(fields, c);
}

}  // namespace

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
  c->norms.of_qk = QkNormConfig();
  c->norms.of_outputs = true;
  c->embedding_scale = std::sqrt(static_cast<float>(c->hidden_dim));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  return ReadGemma3Attention(fields, c);
}

}  // namespace kvlathe
