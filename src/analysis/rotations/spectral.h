// The rotations of OSCAR (Together AI, 2026, arXiv 2605.17757; docs/methods/oscar.md): rows keep
// all of their channels, turned so that codes with a scale per token lose least where attention
// looks.
#pragma once

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// Keys and queries after RoPE are stored as k U H P, where U has the eigenvectors of Q^T Q of the
// group's queries in ascending order; values as v U H P with those of V^T S^T S V, the second
// moments of what attention makes of them (CalibrationStatistics::outputs). H is Sylvester's
// Hadamard matrix, which gives every channel a part of each direction, and P the order of reversed
// bits, so that channels that share a scale are not alike. Where head_dim is no power of two, H has
// blocks, the largest first, and the directions are dealt out to them in turn.
// Keys and values lose their means where the options say so, which attention does not see.
// With `shares_heads` the moments are means over the KV heads of a layer, and their rotations are
// one. kInvalidArgument for statistics without moments of outputs; kDataLoss, with layer and head,
// for statistics that are not finite.
StatusOr<BasisAnalysis> AnalyseSpectral(const BasisInputs& inputs);

// All channels of every head: behind H none matters less than another.
StatusOr<RankAllocation> AllocateSpectral(const BasisAnalysis& analysis,
                                          const RankRequest& request);

inline constexpr BasisMethod kSpectralMethod = {.analyse = AnalyseSpectral,
                                                .allocate = AllocateSpectral,
                                                .wants_text = true,
                                                .wants_outputs = true};

}  // namespace kvlathe
