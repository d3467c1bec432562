// Ranges of codes that end where a share of the magnitudes of a row lies below (PackedSide::clip).
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Narrows the ranges per token of the block in ws->x, ws->low and ws->high
// [n_groups][kBlockSize], to at most the clipped magnitude of the token's row of `rank` numbers.
// Does nothing where the side clips nothing. NaN stands for exact entries, which do not count.
void ClipTokenRanges(const PackedSide& side, bool is_key, int rank, int n_groups,
                     SealWorkspace* ws);

}  // namespace kvlathe
