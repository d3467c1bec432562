#include "kernels/cpu/elementwise.h"

#include "kernels/cpu/elementwise_isa.h"

namespace kvlathe {

const ElementwiseKernels& GetElementwiseKernels(Isa isa) {
  return isa == Isa::kScalar ? kElementwiseScalar : kElementwiseAvx512;
}

}  // namespace kvlathe
