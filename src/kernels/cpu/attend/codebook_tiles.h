// Sealed blocks with codebooks as plain Bf16 blocks, for kernels that read only those. A block is
// expanded once for all rows of a panel; nothing is kept.
#pragma once

#include "kernels/cpu/attend/attend_packed.h"

namespace kvlathe {

// F32 and Bf16 of a block of the largest ranks.
inline constexpr int64_t kCodebookTileBytes = int64_t{64} * 2 * 256 * (4 + 2);

class CodebookTiles {
 public:
  // `scratch` is kCodebookTileBytes, 64-byte aligned. Both outlive the tiles.
  CodebookTiles(const AttendParams& params, std::byte* scratch);

  // Block `block` as a plain one: itself where it is, else expanded, until the next call. Blocks
  // come in ascending order.
  const std::byte* Read(int block);

 private:
  const AttendParams& params_;
  std::byte* scratch_;
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
};

}  // namespace kvlathe
