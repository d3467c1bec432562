// Scales and codes of a run.
#pragma once

#include <span>

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// Where what the codes of a block lose goes: for the factors of the run, or only until the exact
// entries of the block have taken theirs. Null where the format has neither.
float* ResidualOf(const HeadRun& run, bool is_key, int block_idx, SealWorkspace* ws);

// Scales and exact entries of V of a block that span the heads of the layer. `runs`: of all of
// them. Returns the first head that holds NaN or infinity, or -1.
int SealLayerValues(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws);

// The rest of K or V of a run but for the low-rank factors; V comes after SealLayerValues of all
// blocks. Leaves the residual in ws->residual where the format has one. False when a row holds NaN
// or infinity.
bool SealKeys(const HeadRun& run, SealWorkspace* ws);
bool SealValues(const HeadRun& run, SealWorkspace* ws);

// Packs codes that are numbers, by lines, of `grid`'s pairs.
void PackNumbers(const HeadRun& run, PairGrid grid, bool is_key, int bits, const float* numbers,
                 std::byte* to, SealWorkspace* ws);

}  // namespace kvlathe
