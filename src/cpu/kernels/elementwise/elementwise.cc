#include "cpu/kernels/elementwise/elementwise.h"

#include "cpu/kernels/elementwise/elementwise_isa.h"

namespace kvlathe {

const ElementwiseKernels& GetElementwiseKernels(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return kElementwiseAvx2;
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kElementwiseAvx512;
  }
  return kElementwiseScalar;
}

}  // namespace kvlathe
