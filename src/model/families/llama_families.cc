// Llama and the families that differ from it by switches.
#include "model/families/family_readers.h"

namespace kvlathe {

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
  c->norms.of_qk = QkNormConfig();
  return RequireSwitch(fields, "use_sliding_window", false);
}

}  // namespace kvlathe
