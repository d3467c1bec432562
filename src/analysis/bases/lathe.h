// lathe is our own basis. It stores rows in the maps that lose least of the products of queries and
// keys, and of values and output weights, after subtracting their means; and it takes ranks away
// where that costs least (docs/methods/lathe.md).
#pragma once

#include "analysis/bases/basis_methods.h"
#include "analysis/statistics/statistics.h"
#include "base/status.h"

namespace kvlathe {

// How many KV heads of a layer one map joins: the largest divisor of JointHeads(shape) with which a
// row of the cache has at most `channels` channels, and 1 if there is none.
int HeadsPerMap(const StatisticsShape& shape, int channels);

// The rows whose moments are those of lathe's keys.
KeyRows KeyRowsOf(const BasisOptions& options);

// Finds for each head of the cache the maps that lose least of what a row's errors cost, from the
// Gram matrices C of rows about their mean and F of the gradients with respect to rows
// (JointMoments): a cut to the first r stored channels costs the sum of s_i^2 beyond r, where s are
// the singular values of F^1/2 C^1/2, and no map of r channels costs less (Eckart and Young 1936).
// A head of the cache is HeadsPerMap(shape, BasisOptions::joint_channels) KV heads of a layer side
// by side. Means become the offsets, unless BasisOptions::is_centred is off. With
// BasisOptions::keys_before_rope keys are latents. Spectra and noise are in nats per token.
// kFailedPrecondition if there are no gradients; kDataLoss, with layer and head, where moments are
// not finite or not those of rows.
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

inline constexpr BasisMethod kLatheMethod = {.analyse = AnalyseLathe,
                                             .allocate = AllocateLathe,
                                             .allocate_bits = AllocateLatheBits,
                                             .wants_text = true,
                                             .wants_gradients = true};

}  // namespace kvlathe
