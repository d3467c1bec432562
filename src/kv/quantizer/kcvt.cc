#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat KcvtFormat(const Stage& stage) {
  const int bits = stage.Integer("bits");
  return {.k = {.bits = bits, .sharing = ScaleSharing::kChannel},
          .v = {.bits = bits, .sharing = ScaleSharing::kTokenLayer}};
}

}  // namespace kvlathe
