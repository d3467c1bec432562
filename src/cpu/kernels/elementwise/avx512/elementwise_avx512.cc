#include "cpu/kernels/elementwise/elementwise_isa.h"
#include "cpu/kernels/elementwise/elementwise_lanes.h"

namespace kvlathe {

const ElementwiseKernels kElementwiseAvx512 = kElementwiseLanes;

}  // namespace kvlathe
