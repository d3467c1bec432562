#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const TokenOptions& options) {
  const PackedSide side{
      .bits = options.bits, .sharing = ScaleSharing::kToken, .group = options.group};
  return {.codec = UniformCodec{side, side}};
}

}  // namespace kvlathe
