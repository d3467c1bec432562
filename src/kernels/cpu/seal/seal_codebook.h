// Sealing with codebooks: codes of K and of V, exact entries of K (seal.h).
#pragma once

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// All of K of a run but for the low-rank factors. Leaves the residual in ws->residual where the
// format has one. False when a row holds NaN or infinity.
bool SealCodebookKeys(const HeadRun& run, SealWorkspace* ws);

// n ranges and offsets, a multiple of 16, from ws->low and ws->high: as F16 to `to` [2][n] and what
// those are to ws->scales and ws->minima.
void RoundCodebookScales(const HeadRun& run, int n, std::byte* to, SealWorkspace* ws);

// Codes of a block of V, whose rows are in ws->x and the scales of its tokens in ws->scales and
// ws->minima. What the codes lose goes to `residual` if that is not null.
void WriteCodebookValues(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);

}  // namespace kvlathe
