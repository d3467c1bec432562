// Where the AVX-512 kernel of plain blocks hands over those of sealed runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attend_avx512.h"

namespace kvlathe {

// More rows than a group of plain blocks takes would not fit the scratch.
inline constexpr int kPackedPanelRows = 64;
inline constexpr int64_t kPackedScratchBytes = 224 << 10;

// Rows that go over the blocks together, and what is kept of each while they do.
struct PackedPanel {
  const AttendParams* p;
  int first_row;
  int n_rows;
  float log2_scale;
  RowState* rows;      // [n_rows]
  float (*sums)[16];   // [n_rows] partial sums of probabilities
  std::byte* scratch;  // kPackedScratchBytes, 64-byte aligned
};

// False: the residual has more columns than the scratch has room for.
bool CanAttendPacked(const PackedHead& head);

// Adds the sealed blocks from `entry` on to the rows' state and o. Returns the entry at which plain
// blocks begin, or one not below kv_end.
int AttendPackedBlocks(const PackedPanel& panel, int entry, int kv_end);

}  // namespace kvlathe
