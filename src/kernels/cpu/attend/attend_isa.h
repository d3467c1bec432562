// The kernel sets behind GetAttendKernels, one per translation unit.
#pragma once

#include "kernels/cpu/attend/attend.h"

namespace kvlathe {

extern const AttendKernels kAttendScalarF32;
extern const AttendKernels kAttendScalarBf16;
extern const AttendKernels kAttendAvx2F32;
extern const AttendKernels kAttendAvx2Bf16;
extern const AttendKernels kAttendAvx512F32;
extern const AttendKernels kAttendAvx512Bf16;
extern const AttendKernels kAttendAmxBf16;

// Shared by the sets of one row type.
void AppendF32(const AppendParams& params);
void AppendBf16(const AppendParams& params);
void AttendRowsAvx512(const AttendRowsParams& params);

}  // namespace kvlathe
