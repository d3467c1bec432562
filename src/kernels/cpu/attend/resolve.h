// Finds the addresses of what tables and plans name by ids (device/sealed_runs.h).
#pragma once

#include <vector>

#include "device/cpu_device.h"
#include "device/sealed_runs.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/entry_scores.h"

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
