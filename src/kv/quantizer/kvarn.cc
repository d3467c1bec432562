#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const KvarnOptions& options) {
  return {.codec = BalancedCodec{.key_bits = options.key_bits,
                                 .value_bits = options.value_bits,
                                 .tile = options.group}};
}

}  // namespace kvlathe
