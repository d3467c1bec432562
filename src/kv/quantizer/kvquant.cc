#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat KvquantFormat(const Stage& stage) {
  const int bits = stage.Integer("bits");
  return {.k = {.bits = bits, .sharing = ScaleSharing::kModel, .has_codebook = true},
          .v = {.bits = bits, .sharing = ScaleSharing::kTokenLayer, .has_codebook = true},
          .sparse_share = stage.Number("outliers")};
}

}  // namespace kvlathe
