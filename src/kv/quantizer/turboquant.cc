#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const TurboquantOptions& options) {
  return {.codec = SphereCodec{.key_bits = options.key_bits,
                               .value_bits = options.value_bits,
                               .keys_have_signs = options.keys_have_signs,
                               .corrects_norms = options.corrects_norms}};
}

}  // namespace kvlathe
