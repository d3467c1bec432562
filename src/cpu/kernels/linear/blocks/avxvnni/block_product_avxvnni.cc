#include "cpu/kernels/linear/blocks/block_product_lanes.h"

namespace kvlathe {

void MultiplyBlocksAvxVnni(WeightType type, const LinearPart& part, const QuantizedRows& x) {
  ForBlockType(type, [&](auto of) { MultiplyBlocks<of.value>(part, x); });
}

}  // namespace kvlathe
