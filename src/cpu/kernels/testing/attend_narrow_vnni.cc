// The kernels of AVX-VNNI, with its instructions as AVX-512 encodes them.
#define KVLATHE_NARROW_LANES
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_lanes.h"
#include "cpu/kernels/attend/attend_rows_lanes.h"
#include "cpu/kernels/testing/attend_emulated.h"

namespace kvlathe {

const AttendKernels kAttendNarrowVnni = {Attend<uint16_t>, AttendRows<uint16_t>, AppendBf16};

}  // namespace kvlathe
