#include "model/families/family_readers.h"

namespace kvlathe {

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

}  // namespace kvlathe
