// Exact entries: which they are, and their lists in the records.
#pragma once

#include <span>

#include "kernels/cpu/seal_workspace.h"

namespace kvlathe {

// Finds the ends of every channel of K over the run.
void FindKeyTails(const HeadRun& run, SealWorkspace* ws);
// Finds the ends of every token of V of a block over all heads. `runs`: of all heads of the layer.
void FindValueTails(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws);

// Writes the entries of a block of K, or of V of one head, to the record, and where they end. ws->x
// holds the rows and ws the tails, whose ties are used up: blocks of K, and heads of V, come in
// order.
void WriteKeyEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);
void WriteValueEntries(const HeadRun& run, int block_idx, SealWorkspace* ws);

// What they wrote; nothing where the format has no exact entries.
std::span<const SparseEntry> KeyEntries(const HeadRun& run, int block_idx);
std::span<const SparseEntry> ValueEntries(const HeadRun& run, int block_idx);

// Puts CodeOfExact at the entries' places; `codes` is the start of the side's codes in the block.
void WriteKeyCodes(std::span<const SparseEntry> entries, const PackedSide& side, std::byte* codes);
void WriteValueCodes(std::span<const SparseEntry> entries, const PackedSide& side, int rank,
                     std::byte* codes);

// Sets the entries' words of a block by lines.
void SetKeyEntries(std::span<const SparseEntry> entries, float value, float* x);
void SetValueEntries(std::span<const SparseEntry> entries, int rank, float value, float* x);

}  // namespace kvlathe
