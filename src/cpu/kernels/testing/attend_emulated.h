// Kernels of instruction sets that the machine of a test need not have. They need AVX-512 BF16.
// Only tests link them.
#pragma once

#include "cpu/kernels/attend/attend.h"

namespace kvlathe {

// The AMX kernel on tiles emulated in C++.
extern const AttendKernels kAttendEmulatedTiles;
// How many products of tiles of bytes this thread has emulated.
int64_t EmulatedByteProducts();
// The kernel of AVX-VNNI with instructions of AVX-512 VNNI for vectors of 256 bits.
extern const AttendKernels kAttendNarrowVnni;

}  // namespace kvlathe
