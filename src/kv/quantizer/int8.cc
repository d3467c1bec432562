#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat FormatOf(const Int8Options& /*options*/) {
  const PackedSide side{.bits = 8, .sharing = ScaleSharing::kToken, .is_symmetric = true};
  return {.k = side, .v = side};
}

}  // namespace kvlathe
