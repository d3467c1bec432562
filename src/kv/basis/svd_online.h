// The strawman of the ZACK and FDC papers (methods.md 1.9): where a prompt ends, an SVD of the keys
// and of the values of each head; blocks keep their first dimensions in that basis, and attention
// has to rebuild full rows from them. Later blocks use the rotations of the prompt.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "base/threads.h"
#include "kernels/cpu/packed_layout.h"

namespace kvlathe {

// One head of a run whose format has an svd_share.
struct OnlineSvdHead {
  PackedShape shape;
  const std::byte* const* blocks = nullptr;  // [n_blocks] plain and full
  std::byte* const* packed = nullptr;        // [n_blocks] PackedBlockBytes, to be written
  std::byte* record = nullptr;               // gets rotations of its own; null: as `rotations` say
  const std::byte* rotations = nullptr;      // the record of the run that has them
};

// In parallel over heads. O(rows d^2 + d^3) a head that finds its rotations, from Gram matrices in
// F64. kDataLoss when a row holds NaN or infinity.
Status SealByOnlineSvd(std::span<const OnlineSvdHead> heads, ThreadPool* pool);

}  // namespace kvlathe
