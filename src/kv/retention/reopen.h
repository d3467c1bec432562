// Sealed entries of a head as plain rows again, where others are dropped, and what sealing those
// once more changes of them.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/attend/attend.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// The entries of a head: runs of `packed` first, plain blocks behind them.
struct HeadEntries {
  BlockShape shape;
  PackedHead packed;
  std::span<std::byte* const> blocks;
  int n_entries = 0;
};

// Copies all entries but the dropped ones (ascending), in their order, into plain blocks. Returns
// how many of these are sealed.
int CopyKept(const HeadEntries& from, std::span<const int> dropped, std::span<std::byte* const> to);

// Of the first n_rows of a run that `sealed` holds now: how far they lie from the plain rows that
// it was sealed from.
Reencoding MeasureReencoding(const HeadEntries& sealed, std::span<std::byte* const> plain,
                             int n_rows);

}  // namespace kvlathe
