// Bases that a sequence finds itself where its prompt ends. Blocks keep the first dimensions of
// rows in these bases, and attention has to rebuild full rows. Later blocks use the rotations of
// the prompt. These are two baselines of the ZACK and FDC papers (docs/methods/svd-online.md):
//   svd-online       the strawman: an SVD of the keys and of the values of each head
//   zack(online=on)  ZACK without its overhead elimination (/OE): rotations of the queries stacked
//                    on the keys and of the values stacked on W_O^T, ranks of each head
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/linear/linear.h"
#include "format/packed_layout.h"

namespace kvlathe {

// One head of a run whose format is rotated.
struct OnlineSvdHead {
  PackedShape shape;
  const std::byte* const* blocks = nullptr;  // [n_blocks] plain and full
  std::byte* const* packed = nullptr;        // [n_blocks] PackedBlockBytes, to be written
  std::byte* record = nullptr;           // receives the run's own rotations; null: uses `rotations`
  const std::byte* rotations = nullptr;  // the record of the run that has them
  // The Gram matrices that K and V are stacked on where the head finds its rotations; null for
  // none.
  const float* query_gram = nullptr;    // QueryGramBytes
  const double* output_gram = nullptr;  // [head_dim, head_dim]
  bool is_normalised = false;           // every block is scaled to the same norm first
};

struct OnlineSvdKernels {
  const ElementwiseKernels* elementwise = nullptr;
  Linear* linear = nullptr;
  ThreadPool* pool = nullptr;
};

// Seals the heads in parallel. A head that finds its rotations costs O(rows d^2 + d^3); they come
// from Gram matrices whose sums are F32 over a few hundred rows and F64 over these sums. kDataLoss
// when a row, or what rows are stacked on, holds NaN or infinity or is too large to square;
// kResourceExhausted when the system has no memory.
Status SealByOnlineSvd(std::span<const OnlineSvdHead> heads, const OnlineSvdKernels& kernels);

}  // namespace kvlathe
