#include "cpu/kernels/attend/attend.h"

#include "base/check.h"
#include "base/cpu_features.h"
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_range.h"

namespace kvlathe {

const bool kFetchesToL1 = L1DataBytes() >= int64_t{48} << 10;

const AttendKernels& GetAttendKernels(Isa isa, DType row_type) {
  const bool is_f32 = row_type == DType::kF32;
  KVL_CHECK(is_f32 || row_type == DType::kBf16);
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      if (is_f32) return kAttendAvx2F32;
      return HasAvxVnni() ? kAttendAvxVnniBf16 : kAttendAvx2Bf16;
    case Isa::kAvx512Bf16:
      return is_f32 ? kAttendAvx512F32 : kAttendAvx512Bf16;
    case Isa::kAmx:
      return is_f32 ? kAttendAvx512F32 : kAttendAmxBf16;
  }
  return is_f32 ? kAttendScalarF32 : kAttendScalarBf16;
}

}  // namespace kvlathe
