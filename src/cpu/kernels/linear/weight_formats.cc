#include "cpu/kernels/linear/dense_weights.h"
#include "cpu/kernels/linear/weight_format.h"

namespace kvlathe {

const WeightFormat& FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return Bf16Weights();
    case WeightType::kF32:
      break;
  }
  return F32Weights();
}

}  // namespace kvlathe
