// Eigen Attention (Saxena et al., 2024, arXiv 2408.05646; docs/methods/eigen.md) stores rows in the
// principal directions of calibration rows: keys from before RoPE in those of all KV heads of the
// layer, values in those of their own head.
#pragma once

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// Keys: the right singular vectors U of the keys before RoPE of all KV heads of a layer, stacked as
// rows of head_dim numbers; latents are k U, the way back is U^T, for every head of the layer.
// Values: the right singular vectors of the value rows of the head. Rows keep their mean. The
// spectra are the singular values, those of keys as a mean over the heads of the layer.
// kDataLoss, with layer and head, for statistics that are not finite.
StatusOr<BasisAnalysis> AnalyseEigen(const BasisInputs& inputs);

// One removal rate eta over all singular values of both pairs, as FDC allocates. The heads of a
// layer have the same rank of keys.
StatusOr<RankAllocation> AllocateEigen(const BasisAnalysis& analysis, const RankRequest& request);

inline constexpr BasisMethod kEigenMethod = {
    .analyse = AnalyseEigen, .allocate = AllocateEigen, .wants_text = true};

}  // namespace kvlathe
