// Sealing the low-rank residual of a run of one head.
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Fits A and B to ws->residual (all blocks of K or of V of the run, by lines) and writes them to
// the blocks and the record. Then it writes what exact entries still miss beside A B^T. The call
// may scale ws->residual.
void FitResidual(const HeadRun& run, bool is_key, int power_loops, SealWorkspace* ws);

}  // namespace kvlathe
