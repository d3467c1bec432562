#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat KiviFormat(const Stage& stage) {
  const int bits = stage.Integer("bits"), group = stage.Integer("group");
  return {.k = {.bits = bits, .sharing = ScaleSharing::kChannel, .group = group},
          .v = {.bits = bits, .sharing = ScaleSharing::kToken, .group = group}};
}

}  // namespace kvlathe
