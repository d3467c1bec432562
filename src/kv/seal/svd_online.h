// Bases that a sequence finds itself, where its prompt ends: blocks keep the first dimensions of
// rows in them, and attention has to rebuild full rows. Later blocks use the rotations of the
// prompt. Two baselines of the ZACK and FDC papers (docs/methods/svd-online.md):
//   svd-online       the strawman: an SVD of the keys and of the values of each head
//   zack(online=on)  ZACK without its overhead elimination (/OE): rotations of the queries stacked
//                    on the keys and of the values stacked on W_O^T, ranks of each head
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "format/packed_layout.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/linear/linear.h"

namespace kvlathe {

// One head of a run whose format is rotated.
struct OnlineSvdHead {
  PackedShape shape;
  const std::byte* const* blocks = nullptr;  // [n_blocks] plain and full
  std::byte* const* packed = nullptr;        // [n_blocks] PackedBlockBytes, to be written
  std::byte* record = nullptr;               // gets rotations of its own; null: as `rotations` say
  const std::byte* rotations = nullptr;      // the record of the run that has them
  // What K and V are stacked on where the head finds its rotations; null: nothing.
  const float* query_gram = nullptr;                 // QueryGramBytes
  const std::vector<double>* output_gram = nullptr;  // [head_dim, head_dim]
  bool is_normalised = false;                        // every block to the same norm first
};

struct OnlineSvdKernels {
  const ElementwiseKernels* elementwise = nullptr;
  Linear* linear = nullptr;
  ThreadPool* pool = nullptr;
};

// In parallel over heads. O(rows d^2 + d^3) a head that finds its rotations, from Gram matrices
// whose sums over rows are F32 for a while and F64 in the end. kDataLoss when a row, or what rows
// are stacked on, holds NaN or infinity or is too large to square; kResourceExhausted when the
// system has no memory.
Status SealByOnlineSvd(std::span<const OnlineSvdHead> heads, const OnlineSvdKernels& kernels);

}  // namespace kvlathe
