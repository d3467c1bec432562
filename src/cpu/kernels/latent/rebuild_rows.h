// The rows of a block in a basis become rows of a KV head of the model (cpu/attention/rebuilt.h):
// kBlockSize * rank * head_dim products for K, and as many for V.
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "cpu/kernels/linear/packed_matrix.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

// Maps are Bf16 [head_dim, rank], of multiples of 16; K and V are those of plain Bf16 blocks
// (format/rows/block_layout.h), 64-byte aligned.
struct RebuildKernels {
  // keys [head_dim, kBlockSize], F32: every token's key, not rounded.
  void (*map_keys)(const PackedMatrix& map, const uint16_t* k, float* keys);
  // Rounds keys [n_dims, kBlockSize] to the K of a block.
  void (*round_keys)(const float* keys, int n_dims, uint16_t* k);
  // The V of a block of head_dim numbers.
  void (*map_values)(const PackedMatrix& map, const uint16_t* v, uint16_t* to);
};

const RebuildKernels& GetRebuildKernels(Isa isa);

// What stands behind them.
extern const RebuildKernels kRebuildScalar;
extern const RebuildKernels kRebuildAvx512;

}  // namespace kvlathe
