// Attention over F32 rows with AVX-512, and over Bf16 rows with codes as integers.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_rows_lanes.h"

namespace kvlathe {

const AttendKernels kAttendAvx512F32 = {Attend<float>, AttendRows<float>, AppendF32};

void AttendCodesAvx512(const AttendParams& params, std::byte* scratch) {
  Attend<uint16_t>(params, scratch);
}

}  // namespace kvlathe
