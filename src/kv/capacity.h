// Says what a budget of KV memory holds, by the formulas of cache_layout.h.
#pragma once

#include <cstdint>

#include "kv/cache_layout.h"

namespace kvlathe {

// Returns the longest prompt, of up to max_tokens positions, that one sequence alone can read in
// steps of at most max_step, or 0 if none fits. It bisects, because longer prompts never need fewer
// bytes.
int64_t LongestPrompt(const CacheLayout& layout, int64_t budget_bytes, int64_t max_step,
                      int64_t max_tokens);

// Returns how many sequences of this length are sure to fit at once if they read their prompts one
// after the other, in steps of at most length.n_step, and then decode together.
int64_t SequencesThatFit(const CacheLayout& layout, const SequenceLength& length,
                         int64_t budget_bytes);

}  // namespace kvlathe
