#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat FormatOf(const KcvtOptions& options) {
  return {.k = {.bits = options.bits, .sharing = ScaleSharing::kChannel},
          .v = {.bits = options.bits, .sharing = ScaleSharing::kTokenLayer}};
}

}  // namespace kvlathe
