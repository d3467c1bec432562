// Balancing the tiles of a run before they become codes (format/balanced/balanced_layout.h).
//
// A tile is a matrix. Its elements (tokens of K, channels of V) and its members (channels of K,
// tokens of V) are divided by scales that are found in turn, sixteen times over, elements first:
//   scale = clamp(scale * clamp(deviation, 1e-3, 1e3), e^-0.3, e^10)
// where `deviation` is the standard deviation (by n - 1) of the element or member as it is divided
// so far, and all scales are 1 at first. Of all rounds, and of the undivided tile, those scales are
// taken whose imbalance is least, the last of equal ones: the largest over the smallest deviation
// of elements, plus the same of members, where the smallest counts as at least 1e-8. The scales of
// elements are stored, in F16. Those of members are not: they would multiply the scale and the
// minimum of the codes that follow, which are made of the tile as it is divided by the stored
// numbers. The rule is that of KVarN (arXiv 2606.03458).
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

inline constexpr int kBalanceRounds = 16;

// Find and store the balance of the tile of blocks [first, end), and leave it in ws->balance, each
// number twice. False when a row holds NaN or infinity.
bool BalanceKeys(const HeadRun& run, int first, int end, SealWorkspace* ws);
bool BalanceValues(const HeadRun& run, int first, int end, SealWorkspace* ws);

}  // namespace kvlathe
