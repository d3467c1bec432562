// FDC puts keys and queries into the joint singular basis of both after RoPE, and values into a
// singular basis of W_V (docs/methods/fdc.md; the value side is Palu's per-head decomposition,
// Chang et al., 2024).
#pragma once

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// One rotation R_qk per KV head: the right singular vectors of the group's queries stacked on the
// keys, after RoPE, from the Gram Q^T Q + K^T K (of the first positions only where
// BasisOptions::counts_first_positions). It is orthogonal, so q R (k R)^T
// = q k^T at full rank. R_v: the right singular vectors of W_V,h behind the root of the Gram matrix
// of its inputs, so those of the value rows themselves; unless BasisOptions::is_whitened, those of
// W_V,h alone, from BasisInputs::value_grams. W_V and W_O absorb it.
StatusOr<BasisAnalysis> AnalyseFdc(const BasisInputs& inputs);

// One removal rate eta over all singular values of both pairs.
StatusOr<RankAllocation> AllocateFdc(const BasisAnalysis& analysis, const RankRequest& request);

inline constexpr BasisMethod kFdcMethod = {.analyse = AnalyseFdc, .allocate = AllocateFdc};

}  // namespace kvlathe
