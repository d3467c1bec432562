// A Hadamard matrix may be part of a basis: it spreads an outlier channel over all channels of a
// row, which is what quantisers with a scale per token want (QuaRot, arXiv 2404.00456;
// docs/quantization.md).
#pragma once

#include "analysis/bases/basis.h"

namespace kvlathe {

// Every row as it is: what a cache without a basis stores.
ModelBasis IdentityBasis(int n_layers, int n_kv_heads, int head_dim);

// Mixes the stored channels of every head by H / sqrt(n), H the Sylvester matrix: keys and queries
// after RoPE (scores stay the same), latents of keys and their way back, values and their way back
// (folded into weights as any basis is). A rank that is no power of two is mixed in blocks, the
// largest first.
void MixByHadamard(ModelBasis* basis);

// The same as llama.cpp does it (since its pull request 21038) with keys and values of quantised
// types whose head size is a multiple of 64: of keys as many neighbouring channels as the largest
// power of two that divides their number, of values 64. Other sizes, which llama.cpp leaves as they
// are, are mixed as above.
void MixAsGgml(ModelBasis* basis);

// Changes the signs of channels that are fixed for all models and heads (SignOfChannel in
// format/sphere_codes), before a Hadamard matrix makes a random rotation of that.
void FlipSigns(ModelBasis* basis);

// What MixByHadamard does, in one head, of every n_k neighbouring channels of keys and n_v of
// values.
void MixChannels(int n_k, int n_v, int head_dim, HeadBasis* head);

// M H: every n neighbouring columns, whose number n divides, times H / sqrt(n).
void MixColumns(int n, std::vector<float>* m);

}  // namespace kvlathe
