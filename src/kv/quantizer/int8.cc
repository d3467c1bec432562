#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat Int8Format(const Stage& /*stage*/) {
  const PackedSide side{.bits = 8, .sharing = ScaleSharing::kToken, .is_symmetric = true};
  return {.k = side, .v = side};
}

}  // namespace kvlathe
