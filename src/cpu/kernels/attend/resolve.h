// Finds the addresses of what tables and plans name by ids (machine/sealed_runs.h).
#pragma once

#include <vector>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/entry_scores.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

inline EntryTable EntryTableAt(const CpuAccess& access, const EntryTableId& id) {
  return EntryTable(access.At(id.object), id.has_sums);
}

inline SortedPositions SortedPositionsAt(const CpuAccess& access, const SortedPositionsId& id) {
  return SortedPositions(access.At(id.object), id.n_blocks, id.is_wide);
}

// The result points to a list that `runs` keeps.
PackedHead PackedHeadAt(const CpuLookup& lookup, const SealedHead& head,
                        std::vector<PackedRun>* runs);

inline KeyRotation KeyRotationAt(const CpuAccess& own, const KeyRotationId& id) {
  return {own.As<const float>(id.cos), own.As<const float>(id.sin), id.half, id.way_back};
}

}  // namespace kvlathe
