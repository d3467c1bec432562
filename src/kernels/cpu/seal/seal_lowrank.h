// The low-rank residual of a run of one head.
#pragma once

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// Fits A and B to ws->residual (all blocks of K or of V of the run, by lines) and writes them to
// the blocks and the record; then what exact entries still miss beside A B^T. ws->residual may be
// scaled.
void FitResidual(const HeadRun& run, bool is_key, int power_loops, SealWorkspace* ws);

}  // namespace kvlathe
