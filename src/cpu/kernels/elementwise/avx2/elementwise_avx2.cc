#include "cpu/kernels/elementwise/elementwise_isa.h"
#include "cpu/kernels/elementwise/elementwise_lanes.h"

namespace kvlathe {

const ElementwiseKernels kElementwiseAvx2 = kElementwiseLanes;

}  // namespace kvlathe
