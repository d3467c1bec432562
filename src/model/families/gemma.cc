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
  KVL_ASSIGN_OR_RETURN(local.window, fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  if (local.window >= c->max_seq_len) local.window = 0;  // nothing ever leaves it
  return ReadLayerTypes(fields, 6, c);
}

// What all models of the family have.
Status ReadGemmaLike(const ConfigFields& fields, int n_kv_heads, int max_positions,
                     ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c,
                                 {.n_kv_heads = n_kv_heads,
                                  .head_dim = 256,
                                  .max_positions = max_positions,
                                  .is_tied = true}));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_bidirectional_attention", false));
  const std::string tanh = "gelu_pytorch_tanh";
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_activation", tanh));
  if (activation != tanh) {
    return RefuseActivation(fields, "hidden_activation", activation, tanh.c_str());
  }
  c->layout = WeightLayout::kGemma;
  c->mlp = MlpKind::kGeglu;
  c->embedding_scale = std::sqrt(static_cast<float>(c->hidden_dim));
  return ReadAttentionBias(fields, c);
}

Status ReadScoreScale(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const double scalar,
                       fields.NumberOr("query_pre_attn_scalar", 256, 1e-3, 1e6));
  c->score_scale = static_cast<float>(1 / std::sqrt(scalar));
  return OkStatus();
}

// A cap that is null is none.
Status ReadCap(const ConfigFields& fields, const char* key, double fallback, float* cap) {
  KVL_ASSIGN_OR_RETURN(const double value,
                       fields.NumberOr(key, fields.IsNull(key) ? 0 : fallback, 0, 1e6));
  *cap = static_cast<float>(value);
  return OkStatus();
}

Status ReadGemma(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGemmaLike(fields, 16, 8192, c));
  // The first files say "gelu" and mean its tanh approximation.
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("hidden_act", "gelu"));
  if (activation != "gelu" && activation != "gelu_pytorch_tanh") {
    return RefuseActivation(fields, "hidden_act", activation, "gelu, gelu_pytorch_tanh");
  }
  return ReadRope(fields, c);
}

Status ReadGemma2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGemmaLike(fields, 4, 8192, c));
  c->norms.of_outputs = true;
  KVL_RETURN_IF_ERROR(ReadCap(fields, "attn_logit_softcapping", 50, &c->score_cap));
  KVL_RETURN_IF_ERROR(ReadCap(fields, "final_logit_softcapping", 30, &c->logit_cap));
  KVL_RETURN_IF_ERROR(ReadScoreScale(fields, c));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  c->attention.kinds.push_back({.rope = c->attention.kinds[0].rope, .window = window});
  if (window >= c->max_seq_len) c->attention.kinds[1].window = 0;  // nothing ever leaves it
  return ReadLayerTypes(fields, 2, c);
}

Status ReadGemma3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGemmaLike(fields, 4, 131072, c));
  c->norms.of_qk = QkNormConfig();
  c->norms.of_outputs = true;
  KVL_RETURN_IF_ERROR(ReadCap(fields, "attn_logit_softcapping", 0, &c->score_cap));
  KVL_RETURN_IF_ERROR(ReadCap(fields, "final_logit_softcapping", 0, &c->logit_cap));
  KVL_RETURN_IF_ERROR(ReadScoreScale(fields, c));
  return ReadGemma3Attention(fields, c);
}

}  // namespace

std::span<const Family> GemmaFamilies() {
  static constexpr Family kRows[] = {
      {"gemma3_text", ReadGemma3},
      {"gemma", ReadGemma},
      {"gemma2", ReadGemma2},
  };
  return kRows;
}

}  // namespace kvlathe
