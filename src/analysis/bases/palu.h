// Palu (Chang et al., 2024; docs/methods/palu.md) stores keys and values as latents of a low-rank
// factor of W_K and W_V, keys from before RoPE. A factor is of one KV head (M-LRD), of several side
// by side (G-LRD) or of all (J-LRD): BasisOptions::heads_per_latent.
#pragma once

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

// kInvalidArgument unless so many KV heads can share a latent.
Status CheckHeadsPerLatent(int heads_per_latent, int n_kv_heads);

// The whitened SVD W_h L = U S V^T, L L^T = X^T X, gives the latents x V' with V' = sqrt(S) V^T
// L^-1 and the way back U' = U sqrt(S). Because V^T L^-1 = S^-1 U^T W_h, the latents are h U
// S^-1/2 of the rows h = W_h x, and U and S are eigenvectors and roots of the Gram matrix of these
// rows: the Gram matrix of the layer's inputs [hidden_dim, hidden_dim] is never needed. Biases stay
// on the way back. Without BasisOptions::is_whitened the Gram matrix is W_h W_h^T. W_h has the rows
// of all heads that share a latent, and their Gram matrix is a part of that across heads.
// kInvalidArgument where the number of heads does not divide n_kv_heads, or the statistics have no
// Gram matrices across heads.
StatusOr<BasisAnalysis> AnalysePalu(const BasisInputs& inputs);

// One removal rate eta over all singular values of both pairs, as FDC allocates, or Palu's own
// shares by RankRequest::fisher. Heads that share a latent store slices of it of the same width,
// multiples of 16.
StatusOr<RankAllocation> AllocatePalu(const BasisAnalysis& analysis, const RankRequest& request);

inline constexpr BasisMethod kPaluMethod = {
    .analyse = AnalysePalu, .allocate = AllocatePalu, .wants_text = true};

}  // namespace kvlathe
