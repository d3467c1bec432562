// Which caches can take back what was drafted in vain, and where.
#pragma once

#include <string_view>

#include "base/status.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// Why sequences of this layout have no drafts: what refused tokens leave in their caches cannot be
// taken back, or there is never room for one. Empty where they may.
std::string_view WhyNothingIsDrafted(const CacheLayout& layout);
// The same as an error: kInvalidArgument, with what to do.
Status CheckDrafts(const CacheLayout& layout);

// How many drafted tokens may follow the next one in its step: none of them ends anything (a run, a
// prune interval), so that what the cache holds of accepted ones does not depend on drafts.
int DraftRoom(const SequenceCache& cache);

}  // namespace kvlathe
