// Exact entries: which they are, and their lists in the records.
#pragma once

#include <span>

#include "kernels/cpu/seal/seal_workspace.h"

namespace kvlathe {

// Finds the ends of every channel of K over the run.
void FindKeyTails(const HeadRun& run, SealWorkspace* ws);
// Finds the ends of every token of V of a block over all heads. `runs`: of all heads of the layer.
void FindValueTails(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws);

// Lists the entries of a block of K, or of V of one head: their counts, their places and where they
// end. ws->x holds the rows and ws the tails, whose ties are used up: blocks of K, and heads of V,
// come in order. Scales may still be missing, which the differences need.
void ListKeyEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);
void ListValueEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);

// The same in two steps, for another choice of the entries of K: ClearLanes, AddKeyEntry by
// channel, StoreKeyLists.
void ClearLanes(int n_lanes, SealWorkspace* ws);
void AddKeyEntry(int token, int channel, SealWorkspace* ws);
void StoreKeyLists(const HeadRun& run, int block_idx, SealWorkspace* ws);

// Sets the words of the listed entries in a block by lines. Nothing where the format has none.
void SetKeyEntries(const HeadRun& run, int block_idx, float value, float* x);
void SetValueEntries(const HeadRun& run, int block_idx, float value, float* x);

// Takes what the codes of the listed entries lose, which `residual` holds, and makes it 0 there. It
// is what the lists store; where the run has a low-rank part, which is not known yet, it waits in
// ws->losses. Nothing where the format has no exact entries.
void TakeKeyLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);
void TakeValueLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);

// Entries that may wait in ws->losses for a run of one head.
int64_t WaitingLosses(const PackedShape& shape);

// Stores what waits in ws->losses for all blocks of K, or of V of one head, less what the low-rank
// part adds to the entries. ws->q and ws->p hold its factors as they are stored.
void WriteRepairedDifferences(const HeadRun& run, bool is_key, SealWorkspace* ws);

}  // namespace kvlathe
