// The capacity is what a budget of KV memory holds, by the formulas of cache_layout.h.
//
// Where the model decides what merges (dmc) these formulas count as if nothing merged. What a text
// has been seen to merge comes in as shares: of the positions behind the sinks, how many are
// entries. A share of 1 is a head that never merged.
#pragma once

#include <cstdint>
#include <span>

#include "kv/cache_layout.h"

namespace kvlathe {

// PeakBytesOfGrowth as if every head kept this share of its positions as entries, at least one. The
// share is read only where the model decides what merges.
int64_t PeakBytesIfMerged(const CacheLayout& layout, const SequenceGrowth& growth, int64_t max_step,
                          int64_t n_prompt, double share);

// The functions below take the share of every head, [n_layers * n_kv_heads], where the model
// decides what merges; none: nothing merges.

// Returns the longest prompt, of up to max_tokens positions, that one sequence alone can read in
// steps of at most max_step, or 0 if none fits. It bisects, because longer prompts never need fewer
// bytes.
int64_t LongestPrompt(const CacheLayout& layout, int64_t budget_bytes, int64_t max_step,
                      int64_t max_tokens, std::span<const double> shares = {});

// Returns how many sequences of this length are sure to fit at once if they read their prompts one
// after the other, in steps of at most length.n_step, and then decode together.
int64_t SequencesThatFit(const CacheLayout& layout, const SequenceLength& length,
                         int64_t budget_bytes, std::span<const double> shares = {});

}  // namespace kvlathe
