#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const KcvtOptions& options) {
  const int bits = options.bits;
  return {.codec = UniformCodec{.k = {.bits = bits, .sharing = ScaleSharing::kChannel},
                                .v = {.bits = bits, .sharing = ScaleSharing::kTokenLayer}}};
}

}  // namespace kvlathe
