// The kernel sets behind GetAttendKernels, one per translation unit.
#pragma once

#include "kernels/cpu/attend.h"

namespace kvlathe {

extern const AttendKernels kAttendScalarF32;
extern const AttendKernels kAttendScalarBf16;
extern const AttendKernels kAttendAvx512Bf16;
extern const AttendKernels kAttendAmxBf16;

// Shared by sets of Bf16 rows.
void AppendBf16(const AppendParams& params);
void AttendRowsAvx512(const AttendRowsParams& params);

}  // namespace kvlathe
