// Sealing with codebooks (seal.h): the codes of K and of V, and the exact entries of K.
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Seals K of a run but for the low-rank factors. The residual is left in ws->residual where the
// format has one. False when a row holds NaN or infinity.
bool SealCodebookKeys(const HeadRun& run, SealWorkspace* ws);

// Makes n ranges and offsets, a multiple of 16, of ws->low and ws->high. They are written to `to`
// [2][n] as F16, and what those numbers are in F32 to ws->scales and ws->minima.
void RoundCodebookScales(const HeadRun& run, int n, std::byte* to, SealWorkspace* ws);

// Writes the codes of a block of V, whose rows are in ws->x and the scales of whose tokens are in
// ws->scales and ws->minima. What the codes lose is written to `residual` unless that is null.
void WriteCodebookValues(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);

}  // namespace kvlathe
