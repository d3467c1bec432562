// Drops entries of the heads of a layer, in place.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "kernels/cpu/attend/attend.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// Chooses what stays of every head of the layer by the cache's plan, closes the gaps and gives back
// what is free. The cache must prune (SequenceCache::must_prune). Costs a pass over the votes of
// each head and, in a prompt, a copy of the rows that move.
//
// Where sealed runs are opened for it (must_reopen) `packed` are those of the heads, else it may be
// empty: all that stays is copied then, into plain blocks that are to be sealed again. Returns for
// each head how many of its entries were sealed. kResourceExhausted when the system has no memory;
// then nothing has changed.
StatusOr<std::vector<int>> PruneLayer(const CacheLayout& layout, int layer_idx,
                                      std::span<const PackedHead> packed, ThreadPool* pool,
                                      SequenceCache* cache);

}  // namespace kvlathe
