#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

Status ReadPhi3(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  c->layout = WeightLayout::kPhi3;
  KVL_RETURN_IF_ERROR(ReadPartialRotary(fields, "partial_rotary_factor", 1, c));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "attention_bias", false));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  return ReadRope(fields, c);
}

}  // namespace

std::span<const Family> Phi3Families() {
  static constexpr Family kRows[] = {
      {"phi3", ReadPhi3},
  };
  return kRows;
}

}  // namespace kvlathe
