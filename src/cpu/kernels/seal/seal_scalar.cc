#include "cpu/kernels/seal/seal_kernel_set.h"

namespace kvlathe {

const SealKernels kSealScalar = kSealKernelSet;

}  // namespace kvlathe
