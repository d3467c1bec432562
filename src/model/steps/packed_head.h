// The sealed runs of a head, as kernels take them.
#pragma once

#include <span>

#include "kv/blocks/sequence_cache.h"
#include "model/layer.h"

namespace kvlathe {

// `cache_layout` is that of the cache that `runs` are of. Not where nothing is sealed.
PackedHead PackedHeadOf(const Layer& layer, const CacheLayout& cache_layout, int kv_head_idx,
                        std::span<const PackedRun> runs, const KeyRotation& rotation);

}  // namespace kvlathe
