#include "model/families/family_readers.h"

namespace kvlathe {

Status ReadGlm(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(fields.Integer("head_dim", 1, kMaxDim).status());
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1.5625e-7, c));
  c->layout = WeightLayout::kGlm;
  c->has_neighbour_pairs = true;
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(fields, 0.5, c));
  return ReadRope(fields, c);
}

Status ReadGlm4(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadGlm(fields, c));
  c->norms.of_outputs = true;
  return OkStatus();
}

}  // namespace kvlathe
