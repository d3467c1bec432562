#include "kernels/cpu/elementwise/elementwise_isa.h"
#include "kernels/cpu/elementwise/elementwise_lanes.h"

namespace kvlathe {

const ElementwiseKernels kElementwiseAvx2 = kElementwiseLanes;

}  // namespace kvlathe
