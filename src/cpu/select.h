// The selection chooses which entries of a head stay: the newest, and of the others those with the
// most votes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/entry_table.h"
#include "machine/kept_entries.h"

namespace kvlathe {

// How the votes of entries are compared.
struct VoteRule {
  int pool_kernel = 1;    // averaged over so many neighbouring entries
  bool averages = false;  // divided by how many queries, up to that of the newest entry, saw them
};

// Returns the entries to drop, in ascending order, so that kept.n of n_entries stay. Of two entries
// with equal votes the newer one stays. The votes in `tables` are added up; they are the table of
// one head, or those of all heads of a layer. Costs O(n_entries), and O(n log n) in what is
// dropped.
std::vector<int> ChooseDropped(const VoteRule& rule, const KeptEntries& kept, int64_t n_entries,
                               std::span<const EntryTable> tables);

// Returns the order of the first sizes.sum() entries by classes: first those with the most votes,
// then the middle, then those with the least; within a class they stay in order. Of two entries
// with equal votes the newer one counts for more. Votes are those of one head, averaged over
// pool_kernel neighbours. Costs O(n log n).
std::vector<int> OrderByClass(int pool_kernel, const ClassSizes& sizes, const EntryTable& table);

// A row that moves to another place.
struct RowMove {
  int from = 0;
  int to = 0;
};

// Returns moves after which the kept entries are in the first places; `dropped` is ascending. If
// in_order, every entry behind a dropped one moves up, and positions stay sorted. Otherwise the
// last entries fill the gaps, with one move for each of them. The moves are to be made one after
// the other in the order of the list.
std::vector<RowMove> MovesThatClose(std::span<const int> dropped, int64_t n_entries, bool in_order);

}  // namespace kvlathe
