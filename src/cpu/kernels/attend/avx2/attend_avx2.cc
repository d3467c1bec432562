// Attention with AVX2 and FMA, for machines without BF16 dots.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_rows_lanes.h"

namespace kvlathe {

const AttendKernels kAttendAvx2F32 = {Attend<float>, AttendRows<float>, AppendF32};
const AttendKernels kAttendAvx2Bf16 = {Attend<uint16_t>, AttendRows<uint16_t>, AppendBf16};

}  // namespace kvlathe
