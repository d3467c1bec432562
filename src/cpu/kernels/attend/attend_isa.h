// The kernel sets from which GetAttendKernels chooses. Each is a translation unit of its own.
#pragma once

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/byte_tiles.h"

namespace kvlathe {

extern const AttendKernels kAttendScalarF32;
extern const AttendKernels kAttendScalarBf16;
extern const AttendKernels kAttendAvx2F32;
extern const AttendKernels kAttendAvx2Bf16;
extern const AttendKernels kAttendAvxVnniBf16;
extern const AttendKernels kAttendAvx512F32;
extern const AttendKernels kAttendAvx512Bf16;
extern const AttendKernels kAttendAmxBf16;

// Functions that the sets of one row type share.
void AppendF32(const AppendParams& params);
void AppendBf16(const AppendParams& params);
void AttendRowsAvx512(const AttendRowsParams& params);
// As ExpandPackedBlock.
void ExpandBlockAvx512(const PackedRunView& run, const std::byte* block, int block_idx,
                       float* values);
// Over Bf16 rows, with codes as integers (code_rows_lanes.h) and rows in F32. `tiles` may be null;
// they change no bit of the result.
void AttendCodesAvx512(const AttendParams& params, const ByteTiles* tiles, std::byte* scratch);
// Whether kAttendAvx512Bf16 does so.
bool ReadsIntegers(const AttendParams& params);

}  // namespace kvlathe
