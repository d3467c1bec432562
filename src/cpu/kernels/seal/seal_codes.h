// Sealing the scales and codes of a run.
#pragma once

#include <span>

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Where to write what the codes of a block lose. The factors of the run need it, or else only the
// exact entries of the block. Null where the format has neither.
float* ResidualOf(const HeadRun& run, bool is_key, int block_idx, SealWorkspace* ws);

// Seals the scales and exact entries of V of a block that span the heads of the layer; `runs` has
// the run of every head. Returns the first head that holds NaN or infinity, or -1.
int SealLayerValues(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws);

// Seal the rest of K or of V of a run but for the low-rank factors; V comes after SealLayerValues
// of all blocks. The residual is left in ws->residual where the format has one. False when a row
// holds NaN or infinity.
bool SealKeys(const HeadRun& run, SealWorkspace* ws);
bool SealValues(const HeadRun& run, SealWorkspace* ws);

// Packs codes that are given as numbers, by lines, for the pairs of `grid`.
void PackNumbers(const HeadRun& run, PairGrid grid, bool is_key, int bits, const float* numbers,
                 std::byte* to, SealWorkspace* ws);

}  // namespace kvlathe
