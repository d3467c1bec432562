// Chooses the exact entries of a run and writes their lists into the records.
#pragma once

#include <span>

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Finds the ends of every channel of K over the run.
void FindKeyTails(const HeadRun& run, SealWorkspace* ws);
// Finds the ends of every token of V of a block over all heads. `runs` has those of all heads of
// the layer.
void FindValueTails(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws);

// List the entries of a block of K, or of V of one head: their counts, their places and where they
// end. ws->x holds the rows, and ws the tails, whose ties the calls use up; so blocks of K, and
// heads of V, come in order. The differences are written later because they need the scales.
void ListKeyEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);
void ListValueEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);

// Do the same for another choice of the entries of K: first ClearLanes, then AddKeyEntry for each
// entry by channel, and StoreKeyLists at the end.
void ClearLanes(int n_lanes, SealWorkspace* ws);
void AddKeyEntry(int token, int channel, SealWorkspace* ws);
void StoreKeyLists(const HeadRun& run, int block_idx, SealWorkspace* ws);

// Set the words of the listed entries in a block by lines. They do nothing where the format has no
// exact entries.
void SetKeyEntries(const HeadRun& run, int block_idx, float value, float* x);
void SetValueEntries(const HeadRun& run, int block_idx, float value, float* x);

// Take what the codes of the listed entries lose out of `residual`, which becomes 0 there. The
// lists store it. Where the run has a low-rank part, which is not known yet, it waits in ws->losses
// instead. They do nothing where the format has no exact entries.
void TakeKeyLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);
void TakeValueLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws);

// How many entries may wait in ws->losses for a run of one head.
int64_t WaitingLosses(const PackedShape& shape);

// Stores what waits in ws->losses for all blocks of K, or of V of one head, after subtracting what
// the low-rank part adds to the entries. ws->q and ws->p hold its factors as they are stored.
void WriteRepairedDifferences(const HeadRun& run, bool is_key, SealWorkspace* ws);

}  // namespace kvlathe
