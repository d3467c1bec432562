// Describes the sealed runs of a head in the form that plans take.
#pragma once

#include <span>

#include "kv/blocks/sequence_cache.h"
#include "model/layer.h"

namespace kvlathe {

// `cache_layout` is the layout of the cache that holds `runs`; it must have a SealPlan.
SealedHead SealedHeadOf(const Layer& layer, const CacheLayout& cache_layout, int kv_head_idx,
                        std::span<const SealedRun> runs, const KeyRotationId& rotation);

}  // namespace kvlathe
