#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat TokenFormat(const Stage& stage) {
  const PackedSide side{.bits = stage.Integer("bits"),
                        .sharing = ScaleSharing::kToken,
                        .group = stage.Integer("group")};
  return {.k = side, .v = side};
}

}  // namespace kvlathe
