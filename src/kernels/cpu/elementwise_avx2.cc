#include "kernels/cpu/elementwise_isa.h"
#include "kernels/cpu/elementwise_lanes.h"

namespace kvlathe {

const ElementwiseKernels kElementwiseAvx2 = kElementwiseLanes;

}  // namespace kvlathe
