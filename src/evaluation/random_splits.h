// Bits of channels for benchmarks without a model.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/basis/ranks.h"

namespace kvlathe {

// Ranks and bits of n heads whose codes take 1 / ratio of 16-bit rows, as lathe allocates them
// where spectra fall exponentially, each pair at a rate of its own (coefficient of variation about
// 0.3). Ratios from 2 to 64.
std::vector<HeadRanks> DrawSplits(int n, int head_dim, double ratio, uint64_t seed);

}  // namespace kvlathe
