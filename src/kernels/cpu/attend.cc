#include "kernels/cpu/attend.h"

#include "base/check.h"
#include "kernels/cpu/attend_isa.h"

namespace kvlathe {

const AttendKernels& GetAttendKernels(Isa isa, DType row_type) {
  if (row_type == DType::kF32) return kAttendScalarF32;
  KVL_CHECK(row_type == DType::kBf16);
  switch (isa) {
    case Isa::kScalar:
      return kAttendScalarBf16;
    case Isa::kAvx512Bf16:
      return kAttendAvx512Bf16;
    case Isa::kAmx:
      return kAttendAmxBf16;
  }
  return kAttendScalarBf16;
}

}  // namespace kvlathe
