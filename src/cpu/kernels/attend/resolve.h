// Finds the addresses of what tables and plans name by ids (machine/sealed_runs.h).
#pragma once

#include <vector>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/entry_scores.h"
#include "cpu/memory/cpu_device.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

inline EntryTable EntryTableAt(const CpuAccess& access, const EntryTableId& id) {
  return EntryTable(access.At(id.object), id.has_sums);
}

inline SortedPositions SortedPositionsAt(const CpuAccess& access, const SortedPositionsId& id) {
  return SortedPositions(access.At(id.object), id.n_blocks, id.is_wide);
}

// The result points to a list that `runs` keeps.
PackedHead PackedHeadAt(const CpuAccess& access, const SealedHead& head,
                        std::vector<PackedRun>* runs);

}  // namespace kvlathe
