// What caches of `bench attention` hold: ranks, bits and lengths of heads, drawn or a model's.
#pragma once

#include <cstddef>
#include <vector>

#include "evaluation/bench/bench_attention.h"

namespace kvlathe {

// Entries of n heads, evenly on a logarithmic scale (AttentionBenchOptions::length_ratio).
std::vector<int> DrawLengths(const AttentionBenchOptions& options, int context, size_t n);

// The cache in n_layers layers: those of the model that the cache is of, again and again where it
// has fewer and evenly from all of them where it has more; else drawn. The heads of the options are
// those of the cache.
CacheLayout DrawLayout(const AttentionBenchOptions& options, const BenchCache& spec, int n_layers);

}  // namespace kvlathe
