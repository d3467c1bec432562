// Drops entries of the heads of a layer, in place.
#pragma once

#include "base/threads.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// Chooses what stays of every head of the layer by the cache's plan, closes the gaps and gives back
// what is free. The cache must prune (SequenceCache::must_prune). Costs a pass over the votes of
// each head and, in a prompt, a copy of the rows that move.
void PruneLayer(const CacheLayout& layout, int layer_idx, ThreadPool* pool, SequenceCache* cache);

}  // namespace kvlathe
