#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const KiviOptions& options) {
  const int bits = options.bits, group = options.group;
  return {.codec =
              UniformCodec{.k = {.bits = bits, .sharing = ScaleSharing::kChannel, .group = group},
                           .v = {.bits = bits, .sharing = ScaleSharing::kToken, .group = group}}};
}

}  // namespace kvlathe
