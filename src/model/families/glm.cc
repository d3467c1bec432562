#include "model/families/family_readers.h"

namespace kvlathe {

Status ReadGlm(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c, {.n_kv_heads = 2, .head_dim = 128, .max_positions = 131072, .eps = 1.5625e-7}));
  c->layout = WeightLayout::kGlm;
  c->has_neighbour_pairs = true;
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 0.5, c));
  return ReadRope(fields, c);
}

Status ReadGlm4(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGlm(fields, c));
  c->norms.of_outputs = true;
  return OkStatus();
}

}  // namespace kvlathe
