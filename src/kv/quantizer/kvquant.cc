#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const KvquantOptions& options, bool keys_before_rope) {
  return {.codec = CodebookCodec{.bits = options.bits, .keys_before_rope = keys_before_rope},
          .sparse_share = options.outliers};
}

}  // namespace kvlathe
