// What tables and plans name by ids (device/sealed_runs.h), at its addresses.
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

// `runs` keeps the list that the result points to.
PackedHead PackedHeadAt(const CpuAccess& access, const SealedHead& head,
                        std::vector<PackedRun>* runs);

}  // namespace kvlathe
