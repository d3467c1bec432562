// Attention over Bf16 rows with AVX2 and the integer dots of AVX-VNNI.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_rows_lanes.h"

namespace kvlathe {

const AttendKernels kAttendAvxVnniBf16 = {Attend<uint16_t>, AttendRows<uint16_t>, AppendBf16};

}  // namespace kvlathe
