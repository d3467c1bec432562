#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat Int8Format() {
  const PackedSide side{.bits = 8, .sharing = ScaleSharing::kToken, .is_symmetric = true};
  return {.codec = UniformCodec{side, side}};
}

}  // namespace kvlathe
