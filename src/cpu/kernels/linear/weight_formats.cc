#include "cpu/kernels/linear/blocks/block_weights.h"
#include "cpu/kernels/linear/dense_weights.h"
#include "cpu/kernels/linear/weight_format.h"

namespace kvlathe {

const WeightFormat& FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return Bf16Weights();
    case WeightType::kF32:
      return F32Weights();
    default:
      return BlockWeights(type);
  }
}

}  // namespace kvlathe
