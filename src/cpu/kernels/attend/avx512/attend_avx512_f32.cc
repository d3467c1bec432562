// Attention over F32 rows with AVX-512.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"

namespace kvlathe {

const AttendKernels kAttendAvx512F32 = {Attend<float>, AttendRows<float>, AppendF32};

}  // namespace kvlathe
