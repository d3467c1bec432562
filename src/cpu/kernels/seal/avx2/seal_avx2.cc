#include "cpu/kernels/seal/seal_kernel_set.h"

namespace kvlathe {

const SealKernels kSealAvx2 = kSealKernelSet;

}  // namespace kvlathe
