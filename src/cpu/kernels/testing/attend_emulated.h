// The AMX kernel on tiles emulated in C++, so that its algorithm is tested where no tiles exist.
// Needs AVX-512 BF16. Only tests link it.
#pragma once

#include "cpu/kernels/attend/attend.h"

namespace kvlathe {

extern const AttendKernels kAttendEmulatedTiles;

}  // namespace kvlathe
