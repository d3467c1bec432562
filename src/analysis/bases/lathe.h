// lathe: our own basis. Queries and keys, and values and output weights, in the maps that lose
// least of their products; rows less their mean; ranks where they cost least.
#pragma once

#include "analysis/bases/method.h"
#include "base/status.h"

namespace kvlathe {

// Per KV head the best maps (DecomposePair) of queries and keys and of attention's outputs and
// W_O, from the moments as attention weighs them; the means of keys and outputs are the offsets,
// unless BasisOptions::is_centred is off. With BasisOptions::keys_before_rope keys are latents: the
// same maps from the moments of keys before RoPE and of queries as those see them. Spectra are in
// units of the measured losses: squares beyond a rank sum to what a cut to that rank costs in nats
// per token, as far as it was measured.
StatusOr<BasisAnalysis> AnalyseLathe(const BasisInputs& inputs);

// Water-filling (RankRule::kLeastError) over all layers, heads and pairs.
StatusOr<RankAllocation> AllocateLathe(const BasisAnalysis& analysis, const RankRequest& request);

// Water-filling of bits: 0, 1, 2, 3, 4 or 8 for each 16 channels of each pair, those next that save
// most loss per bit, until kv_fraction reaches 1 / ratio. No bits cost what cutting does, b bits
// UnitLoss(b) of what noise does. request.goal is kRatio.
// kInvalidArgument: a ratio that one bit per channel of the lowest ranks does not reach.
StatusOr<RankAllocation> AllocateLatheBits(const BasisAnalysis& analysis,
                                           const RankRequest& request);

}  // namespace kvlathe
