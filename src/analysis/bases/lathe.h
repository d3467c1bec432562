// lathe: our own basis. It stores rows in the maps that lose least of the products of queries and
// keys, and of values and output weights, after subtracting their means; and it takes ranks away
// where that costs least (docs/methods/lathe.md).
#pragma once

#include "analysis/bases/method.h"
#include "base/status.h"

namespace kvlathe {

// Finds for each KV head the best maps (DecomposePair) of queries and keys, and of attention's
// outputs and W_O, from the moments of rows as attention weighs them. The means of keys and of
// outputs become the offsets, unless BasisOptions::is_centred is off. With
// BasisOptions::keys_before_rope keys are latents: the same maps from the moments of keys before
// RoPE and of queries as those see them. Spectra are in units of the measured losses: squares
// beyond a rank sum to what a cut to that rank costs in nats per token, as far as it was measured.
StatusOr<BasisAnalysis> AnalyseLathe(const BasisInputs& inputs);

// Shares out ranks by water-filling (RankRule::kLeastError) over all layers, heads and pairs.
StatusOr<RankAllocation> AllocateLathe(const BasisAnalysis& analysis, const RankRequest& request);

// Shares out bits: each 16 channels of each pair get 0, 1, 2, 3, 4, 5 or 8, and the next bits go
// where they save most loss per bit, until kv_fraction reaches 1 / ratio. Channels without bits
// lose what cutting them costs, channels of b bits UnitLoss(b) of what noise costs. request.goal
// must be kRatio. kInvalidArgument for a ratio that one bit per channel of the lowest ranks does
// not reach.
StatusOr<RankAllocation> AllocateLatheBits(const BasisAnalysis& analysis,
                                           const RankRequest& request);

}  // namespace kvlathe
