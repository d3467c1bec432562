// Sealing where channels have bits of their own (seal.h).
#pragma once

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// All of K, or of V, of a run but for the low-rank factors. Leave the residual in ws->residual
// where the format has one. False when a row holds NaN or infinity.
bool SealSplitKeys(const HeadRun& run, SealWorkspace* ws);
bool SealSplitValues(const HeadRun& run, SealWorkspace* ws);

}  // namespace kvlathe
