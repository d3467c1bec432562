// Drops entries of the heads of a layer.
#pragma once

#include <vector>

#include "base/threads.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/plans.h"

namespace kvlathe {

// Chooses by their votes what stays of every head and closes the gaps, or copies what stays to
// other blocks. Costs a pass over the votes of each head and, in a prompt, a copy of the rows that
// move. Returns for each head how many of the entries that stay were sealed.
std::vector<int> PruneHeads(const PrunePlan& plan, const CpuLookup& lookup, ThreadPool* pool);

}  // namespace kvlathe
