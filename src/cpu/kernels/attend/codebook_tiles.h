// Expands sealed blocks with codebooks to plain Bf16 blocks, for kernels that read only those. A
// block is expanded once for all rows of a panel, and nothing is kept.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"

namespace kvlathe {

// What a block of the largest ranks takes in F32 and in Bf16.
inline constexpr int64_t kCodebookTileBytes = int64_t{64} * 2 * 256 * (4 + 2);

class CodebookTiles {
 public:
  // `scratch` has kCodebookTileBytes and is 64-byte aligned. Both outlive the tiles.
  CodebookTiles(const AttendParams& params, std::byte* scratch);

  // Returns block `block` as a plain one: the block itself where it is plain, or else what it was
  // expanded to, which is valid until the next call. Blocks are asked for in ascending order.
  const std::byte* Read(int block);

 private:
  const AttendParams& params_;
  std::byte* scratch_;
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
};

}  // namespace kvlathe
