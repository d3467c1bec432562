// Sealing where channels differ in bits (seal.h).
#pragma once

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// Seal K or V of a run but for the low-rank factors. The residual is left in ws->residual where the
// format has one. False when a row holds NaN or infinity.
bool SealSplitKeys(const HeadRun& run, SealWorkspace* ws);
bool SealSplitValues(const HeadRun& run, SealWorkspace* ws);

}  // namespace kvlathe
