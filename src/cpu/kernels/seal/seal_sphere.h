// Sealing in codes of directions and norms (format/sphere_codes/sphere_codes.h).
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Writes the codes and scales of K or V of a run. False when a row holds NaN or infinity.
bool SealSphereSide(const HeadRun& run, bool is_key, SealWorkspace* ws);

}  // namespace kvlathe
