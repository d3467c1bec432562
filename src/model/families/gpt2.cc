#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

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
  KVL_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_epsilon", 1e-5, c));
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

}  // namespace

std::span<const Family> Gpt2Families() {
  static constexpr Family kRows[] = {
      {"gpt2", ReadGpt2},
  };
  return kRows;
}

}  // namespace kvlathe
