// A sequence is admitted by a forecast of how many bytes of KV memory it is going to need.
//
// Bytes follow from lengths (PeakBytesIfMerged): entries that a plan drops or pools are not
// counted, and what it took to read a prompt is not once the prompt has been read. Only where the
// model decides what merges (dmc) nothing is known before. There it counts as if every head kept
// the share of its positions that was measured: by the sequence itself once it has read
// kMeasuredPositions, and before that by all sequences of its level so far. Where nothing was
// measured yet, all are kept.
//
// A sequence whose runs may be sealed again in fewer bits counts as if all but its newest were:
// others are let in for what it could give up, and the engine asks for that only where they, or it
// itself, come to need it.
#pragma once

#include <cstdint>

#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// What became of positions behind the sinks, summed over heads.
struct MergedCounts {
  int64_t n_positions = 0;
  int64_t n_entries = 0;

  void Add(const MergedCounts& more) {
    n_positions += more.n_positions;
    n_entries += more.n_entries;
  }
  double share() const {
    return n_positions == 0 ? 1 : static_cast<double>(n_entries) / static_cast<double>(n_positions);
  }
};

inline constexpr int64_t kMeasuredPositions = 64;

// Of a cache whose model decides what merges.
MergedCounts MergedCountsOf(const SequenceCache& cache);

// How many bytes fewer n_tokens positions take once all of their runs but the newest were sealed
// again in fewer bits. 0 where layers have windows, which hold few of them.
int64_t BytesToPressOff(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// What a sequence needs alone, at least: a request that needs more can never run. Where the model
// decides, it is as if all positions became one entry, and steps were of one token.
int64_t LeastBytesAlone(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                        int64_t n_prompt);

}  // namespace kvlathe
