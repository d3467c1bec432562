// ZACK has one rotation for queries and keys, and one for values and output weights
// (docs/methods/zack.md). Calibrate on text: the method is defined by what coherent tokens do.
#pragma once

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// Per KV head, R_qk: the right singular vectors of the group's queries stacked on the keys, after
// RoPE, and R_v: those of the value rows stacked on the columns of W_O of every query head of the
// group. Rows of the first positions are left out unless
// BasisOptions::counts_first_positions. With BasisOptions::is_normalised every one of
// the four blocks is scaled to a Frobenius norm of 1 first: otherwise R_v follows the value rows
// alone once there are many tokens.
StatusOr<BasisAnalysis> AnalyseZack(const BasisInputs& inputs);

// FDC's: one removal rate eta over all singular values of both pairs.
StatusOr<RankAllocation> AllocateZack(const BasisAnalysis& analysis, const RankRequest& request);

inline constexpr BasisMethod kZackMethod = {
    .analyse = AnalyseZack, .allocate = AllocateZack, .wants_text = true};

}  // namespace kvlathe
