// The sealed runs and the entries of a head as tables and plans tell of them: where everything
// lies, by ids. The backend of a device makes what its kernels read from them (for a CPU
// cpu/kernels/attend/attend.h).
#pragma once

#include <span>

#include "format/packed_layout.h"
#include "machine/object_id.h"
#include "machine/residents.h"

namespace kvlathe {

// One sealed run: blocks [first_block, first_block + n_blocks) of its head.
struct SealedRun {
  int first_block = 0;
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  EntryClass entry_class = EntryClass::kMiddle;
  ObjectId record;        // null where the format has none, or all blocks have left the window
  ObjectId layer_record;  // shared by the heads of the layer; null likewise
};

// Blocks at the end that are coded row by row and not sealed yet (cpu/kernels/attend/coded_rows.h).
struct OpenBlocks {
  int first_block = 0;
  int n_blocks = 0;
};

// The sealed part of a head: one run after the other from the first block; later blocks are plain,
// or open.
struct SealedHead {
  PackedFormat format;
  HeadStorage storage;
  int kv_head_idx = 0;   // among the heads that share layer records
  int n_kv_heads = 1;    // that share them
  int layer_rank_v = 0;  // sum over those heads
  std::span<const SealedRun> runs;
  OpenBlocks open;         // n_blocks 0: blocks behind the runs are plain
  CodebooksId codebooks;   // where the format has them
  KeyRotationId rotation;  // from the first block on, where the format keeps keys before RoPE
};

// Positions and votes of the entries of a head (EntryTable, cpu/kernels/attend/entry_scores.h).
struct EntryTableId {
  ObjectId object;
  bool has_sums = false;

  bool empty() const { return object.is_null(); }
};

// Positions of the entries that were sorted where the prompt ended (SortedPositions).
struct SortedPositionsId {
  ObjectId object;  // null: none were, or nobody asks
  int n_blocks = 0;
  bool is_wide = false;
};

}  // namespace kvlathe
