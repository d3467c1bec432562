// The kernel sets behind GetElementwiseKernels, one per translation unit.
#pragma once

#include "kernels/cpu/elementwise/elementwise.h"

namespace kvlathe {

extern const ElementwiseKernels kElementwiseScalar;
extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;

}  // namespace kvlathe
