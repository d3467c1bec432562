// The sealed runs of a head, as plans tell of them.
#pragma once

#include <span>

#include "kv/blocks/sequence_cache.h"
#include "model/layer.h"

namespace kvlathe {

// `cache_layout` is that of the cache that `runs` are of. Not where nothing is sealed.
SealedHead SealedHeadOf(const Layer& layer, const CacheLayout& cache_layout, int kv_head_idx,
                        std::span<const SealedRun> runs, const KeyRotation& rotation);

}  // namespace kvlathe
