// Ranks and bits of channels for benchmarks without a model.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/ranks/ranks.h"

namespace kvlathe {

// Ranks of n pairs (rank_k, rank_v) in one list of 2 n, coefficient of variation about 0.3: each in
// [16, head_dim], the sum the least multiple of 16 that is >= 2 n (1 - rate) head_dim.
std::vector<int> DrawRanks(int n, int head_dim, double rate, uint64_t seed);

// Ranks and bits of n heads whose codes take 1 / ratio of 16-bit rows, as lathe allocates them
// where spectra fall exponentially, each pair at a rate of its own (coefficient of variation about
// 0.3). Ratios from 2 to 64.
std::vector<HeadRanks> DrawSplits(int n, int head_dim, double ratio, uint64_t seed);

// What ranks=uniform gives n heads of any model: nothing about it is random.
std::vector<HeadRanks> UniformRanks(int n, int head_dim, double rate);

}  // namespace kvlathe
