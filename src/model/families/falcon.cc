#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

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
  KVL_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_epsilon", 1e-5, c));
  KVL_ASSIGN_OR_RETURN(c->tie_word_embeddings, fields.BoolOr("tie_word_embeddings", true));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("bias", false));
  c->biases.o = c->biases.mlp = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(const std::string activation, fields.StringOr("activation", "gelu"));
  if (activation != "gelu") return RefuseActivation(fields, "activation", activation, "gelu");
  return ReadRope(fields, c);
}

}  // namespace

std::span<const Family> FalconFamilies() {
  static constexpr Family kRows[] = {
      {"falcon", ReadFalcon},
  };
  return kRows;
}

}  // namespace kvlathe
