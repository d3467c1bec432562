// The kernel sets behind GetElementwiseKernels, one per translation unit.
#pragma once

#include "cpu/kernels/elementwise/elementwise.h"

namespace kvlathe {

extern const ElementwiseKernels kElementwiseScalar;
extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;

}  // namespace kvlathe
