// Which entries of a head stay: the newest, and of the others those with the most votes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attend/entry_scores.h"
#include "kv/retention/plan.h"

namespace kvlathe {

// Entries to drop, ascending, so that kept.n of n_entries stay. Of equal votes the newer entry
// stays. `tables` are those of the heads whose votes are added up: one head's, or all of a layer.
// O(n_entries), and O(n log n) in what is dropped.
std::vector<int> ChooseDropped(const RetentionPlan& plan, const KeptEntries& kept,
                               int64_t n_entries, std::span<const EntryTable> tables);

// A row that takes another place.
struct RowMove {
  int from = 0;
  int to = 0;
};

// Moves that leave the kept entries in the first places; `dropped` ascends. In order: every entry
// behind a dropped one moves up, and positions stay sorted. Otherwise the last entries fill the
// gaps: one move for each of them. Moves may be made one after the other as they are listed.
std::vector<RowMove> MovesThatClose(std::span<const int> dropped, int64_t n_entries, bool in_order);

}  // namespace kvlathe
