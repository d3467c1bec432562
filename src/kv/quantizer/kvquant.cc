#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const KvquantOptions& options) {
  return {.codec = CodebookCodec{.bits = options.bits}, .sparse_share = options.outliers};
}

}  // namespace kvlathe
