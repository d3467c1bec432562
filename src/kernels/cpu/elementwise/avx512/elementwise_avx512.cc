#include "kernels/cpu/elementwise/elementwise_isa.h"
#include "kernels/cpu/elementwise/elementwise_lanes.h"

namespace kvlathe {

const ElementwiseKernels kElementwiseAvx512 = kElementwiseLanes;

}  // namespace kvlathe
