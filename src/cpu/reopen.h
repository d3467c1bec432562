// Turns the sealed entries of a head into plain rows again where some of them are dropped, and
// measures how far sealing the others once more moves them.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/kernels/attend/attend.h"
#include "machine/kept_entries.h"

namespace kvlathe {

// The entries of a head: the runs of `packed` come first, plain blocks follow them.
struct HeadEntries {
  BlockShape shape;
  PackedHead packed;
  std::span<std::byte* const> blocks;
  int n_entries = 0;
};

// Copies all entries but the dropped ones, which are in ascending order, into plain blocks and
// keeps their order. Returns how many of the copied ones were sealed.
int CopyKept(const HeadEntries& from, std::span<const int> dropped, std::span<std::byte* const> to);

// How far the first n_rows rows of a run, which `sealed` holds now, lie from the plain rows that
// they were sealed from.
Reencoding MeasureReencoding(const HeadEntries& sealed, std::span<std::byte* const> plain,
                             int n_rows);

}  // namespace kvlathe
