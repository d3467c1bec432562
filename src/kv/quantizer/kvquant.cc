#include "kv/quantizer/method.h"

namespace kvlathe {

PackedFormat FormatOf(const KvquantOptions& options) {
  const int bits = options.bits;
  return {.k = {.bits = bits, .sharing = ScaleSharing::kModel, .has_codebook = true},
          .v = {.bits = bits, .sharing = ScaleSharing::kTokenLayer, .has_codebook = true},
          .sparse_share = options.outliers};
}

}  // namespace kvlathe
