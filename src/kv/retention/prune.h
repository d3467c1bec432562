// Drops entries of the heads of a layer, in place.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "device/sealed_runs.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// Chooses by the cache's plan what stays of every head of the layer, closes the gaps and gives back
// the blocks that become free. The cache must be at a prune point (SequenceCache::must_prune).
// Costs a pass over the votes of each head and, in a prompt, a copy of the rows that move.
//
// Where entries to be dropped are sealed (must_reopen), `packed` has the sealed runs of each head,
// and all that stays is copied into plain blocks, which are to be sealed again; elsewhere `packed`
// may be empty. Returns for each head how many of the entries that stay were sealed.
// kResourceExhausted when the system has no memory, and then nothing has changed.
StatusOr<std::vector<int>> PruneLayer(const CacheLayout& layout, int layer_idx,
                                      std::span<const SealedHead> packed, ThreadPool* pool,
                                      SequenceCache* cache);

}  // namespace kvlathe
