// Attention over F32 rows with AVX-512, and over Bf16 rows with codes as integers.
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_rows_lanes.h"

namespace kvlathe {

const AttendKernels kAttendAvx512F32 = {Attend<float>, AttendRows<float>, AppendF32};

void ExpandBlockAvx512(const PackedRunView& run, const std::byte* block, int block_idx,
                       float* values) {
  ExpandSealedBlock(run, block, block_idx, values);
}

void AttendCodesAvx512(const AttendParams& params, const ByteTiles* tiles, std::byte* scratch) {
  AttendWith<uint16_t>(params, tiles, scratch);
}

}  // namespace kvlathe
