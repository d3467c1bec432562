// Families whose norms take the mean off, as they came after GPT-2.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

Status ReadStarcoder2(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kStarcoder2;
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c,
                                 {.n_kv_heads = 2,
                                  .max_positions = 4096,
                                  .eps_key = "norm_epsilon",
                                  .eps = 1e-5,
                                  .is_tied = true}));
  KVL_RETURN_IF_ERROR(ReadGelu(fields, "gelu_pytorch_tanh", c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("use_bias", true));
  c->biases.o = c->biases.mlp = c->biases.qkv;
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  return ReadRope(fields, c);
}

Status ReadStableLm(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kStableLm;
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(ReadShapes(
      fields, c,
      {.n_kv_heads = 32, .max_positions = 4096, .eps_key = "layer_norm_eps", .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ShareHiddenOut(fields, c));
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("use_qkv_bias", false));
  KVL_ASSIGN_OR_RETURN(const bool has_qk_norms, fields.BoolOr("qk_layernorm", false));
  if (has_qk_norms) {
    c->norms.of_qk = {.over = QkNormConfig::Over::kHeadOwn, .kind = NormKind::kLayerBare};
  }
  KVL_ASSIGN_OR_RETURN(c->parallel_block, fields.BoolOr("use_parallel_residual", false));
  c->shared_norm = c->parallel_block;
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.25, c));
  return ReadRope(fields, c);
}

// Its heads are all alike: there are no fewer heads of keys and values.
Status ReadGptNeox(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kGptNeox;
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(ReadSizes(fields, {}, c));
  KVL_RETURN_IF_ERROR(ShareHiddenOut(fields, c));
  c->n_kv_heads = c->n_heads;
  KVL_RETURN_IF_ERROR(CheckHeads(fields, *c));
  KVL_ASSIGN_OR_RETURN(c->ffn_dim, fields.Integer("intermediate_size", 1, kMaxDim));
  KVL_ASSIGN_OR_RETURN(c->max_seq_len,
                       fields.IntegerOr("max_position_embeddings", 2048, 1, kMaxPositions));
  KVL_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_eps", 1e-5, c));
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", false));
  KVL_RETURN_IF_ERROR(ReadGelu(fields, "gelu", c));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  c->biases.o = c->biases.qkv;
  c->biases.mlp = true;
  KVL_ASSIGN_OR_RETURN(c->parallel_block, fields.BoolOr("use_parallel_residual", true));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "rotary_pct", 0.25, c));
  return ReadRope(fields, {.theta = "rotary_emb_base"}, *c, &c->attention.kinds[0].rope);
}

Status ReadPhi(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kPhi;
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(
      ReadShapes(fields, c, {.max_positions = 2048, .eps_key = "layer_norm_eps", .eps = 1e-5}));
  // The head has a bias, and there is no name for one that it shares with the embedding.
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "tie_word_embeddings", false));
  KVL_RETURN_IF_ERROR(ReadGelu(fields, "gelu_new", c));
  c->biases = {.qkv = true, .o = true, .mlp = true, .head = true};
  c->parallel_block = c->shared_norm = true;
  KVL_ASSIGN_OR_RETURN(const bool has_qk_norms, fields.BoolOr("qk_layernorm", false));
  if (has_qk_norms) c->norms.of_qk = {.kind = NormKind::kLayer};
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.5, c));
  return ReadRope(fields, c);
}

Status ReadNemotron(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kGemma;  // norms are stored less one
  c->norms.kind = NormKind::kLayer;
  c->mlp = MlpKind::kRelu2;
  KVL_RETURN_IF_ERROR(
      ReadShapes(fields, c, {.max_positions = 4096, .eps_key = "norm_eps", .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "relu2"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.5, c));
  return ReadRope(fields, c);
}

Status ReadJais2(const ConfigFields& fields, ModelConfig* c) {
  c->norms.kind = NormKind::kLayer;
  c->mlp = MlpKind::kRelu2;
  KVL_RETURN_IF_ERROR(
      ReadShapes(fields, c, {.max_positions = 8192, .eps_key = "layer_norm_eps", .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "relu2"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", true));
  return ReadRope(fields, c);
}

// The first OLMo: its norms have no weights, and one epsilon.
Status ReadOlmo(const ConfigFields& fields, ModelConfig* c) {
  c->norms = {.kind = NormKind::kLayerBare, .has_weights = false};
  KVL_RETURN_IF_ERROR(
      ReadLlamaLike(fields, c, {.max_positions = 2048, .eps_key = "layer_norm_eps", .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(const double clip, fields.NumberOr("clip_qkv", 0, 0, 1e6));
  if (clip == 0) return ReadRope(fields, c);
  return Error(StatusCode::kUnimplemented,
               "{}: 'clip_qkv' is {}: clipped queries, keys and values are not supported",
               fields.where(), clip);
}

// A Llama but for its norms, whose epsilon is called that of RMSNorm.
Status ReadOrion(const ConfigFields& fields, ModelConfig* c) {
  c->norms.kind = NormKind::kLayer;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.eps = 1e-5}));
  return ReadRope(fields, c);
}

}  // namespace

std::span<const Family> LayerNormFamilies() {
  static constexpr Family kRows[] = {
      {"starcoder2", ReadStarcoder2},
      {"stablelm", ReadStableLm},
      {"gpt_neox", ReadGptNeox},
      {"phi", ReadPhi},
      {"nemotron", ReadNemotron},
      {"jais2", ReadJais2},
      {"olmo", ReadOlmo},
      {"orion", ReadOrion},
  };
  return kRows;
}

}  // namespace kvlathe
