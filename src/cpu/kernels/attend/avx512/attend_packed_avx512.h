// The AVX-512 kernel of plain blocks hands the blocks of sealed runs over here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/attend/avx512/attend_avx512.h"

namespace kvlathe {

// The most rows of a panel. Each panel decodes its blocks anew, so 128 rows take 0.95 (kivi) and
// 0.87 (GEAR) of the time that 64 do. What is kept of more rows would fill half of L2.
inline constexpr int kPackedPanelRows = 128;
inline constexpr int64_t kPackedScratchBytes = 528 << 10;
// A full panel has room for this many factors of the low-rank residual. With more factors a panel
// has fewer rows: 16 at the 64 factors that a format may have.
inline constexpr int kFactorsOfFullPanel = 8;

// The rows that go over the blocks together, and what is kept of each meanwhile.
struct PackedPanel {
  const AttendParams* p;
  int first_row;
  int n_rows;
  float log2_scale;
  RowState* rows;      // [n_rows]
  float (*sums)[16];   // [n_rows] partial sums of probabilities
  std::byte* scratch;  // kPackedScratchBytes, 64-byte aligned
};

// How many rows go together over the sealed blocks of this head. It is a multiple of four.
int PanelRowsOf(const PackedHead& head);

// Adds the sealed blocks from `entry` on to the rows' state and o. Returns the entry at which plain
// blocks begin, or one not below kv_end.
int AttendPackedBlocks(const PackedPanel& panel, int entry, int kv_end);

}  // namespace kvlathe
