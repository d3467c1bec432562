// Keys that a cache holds as latents from before RoPE (docs/methods/palu.md). A block of them
// becomes a plain block of keys in scratch, for attention kernels that read only those: multiplied
// by the way back and turned to their positions. That costs kBlockSize * rank * head_dim products a
// block, however few rows of queries read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "format/codebook/codebook.h"
#include "format/latent_map.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

// One block to read.
struct LatentBlock {
  BlockShape shape;  // as it is stored: K are latents
  LatentMapView map;
  KeyRotation rotation;  // of this block; half is a multiple of 2
  const std::byte* block = nullptr;
  const PackedRunView* run = nullptr;  // null: a plain block
  int block_idx = 0;                   // in its run
  std::byte* tile = nullptr;           // gets a plain block of head_dim and rank_v, 64-byte aligned
};

// F32 values of a sealed block, keys in F32, and latents as the products want them. A plain block
// may have more than kMaxRowRank latents, for 4 kBlockSize bytes of scratch each.
inline constexpr int64_t kLatentScratchBytes = int64_t{kBlockSize} * kMaxRowRank * 4 * (2 + 1 + 1);

// Fills block.tile. `scratch` is kLatentScratchBytes, 64-byte aligned.
using ReadLatentBlock = void (*)(const LatentBlock& block, std::byte* scratch);

// The fastest for `isa` and rows of `row_type`.
ReadLatentBlock GetLatentReader(Isa isa, DType row_type);

// How many of the latents are not zero in all of a block: those behind them have no codes.
int LatentsToRead(const LatentBlock& block);

// The columns for the bits of a side, or null.
const LatentBytes* FindBytes(const LatentMapView& map, const PackedSideView& side);

// As ExpandPackedBlock.
using ReadSealedBlock = void (*)(const PackedRunView& run, const std::byte* block, int block_idx,
                                 float* values);
ReadSealedBlock GetSealedReader(Isa isa);

// What stands behind them, one translation unit each.
void ReadLatentsScalarF32(const LatentBlock& block, std::byte* scratch);
void ReadLatentsScalarBf16(const LatentBlock& block, std::byte* scratch);
void ReadLatentsAvx2F32(const LatentBlock& block, std::byte* scratch);
void ReadLatentsAvx2Bf16(const LatentBlock& block, std::byte* scratch);
void ReadLatentsAvx512F32(const LatentBlock& block, std::byte* scratch);
void ReadLatentsAvx512Bf16(const LatentBlock& block, std::byte* scratch);
void ExpandSealedBlockAvx2(const PackedRunView& run, const std::byte* block, int block_idx,
                           float* values);
void ExpandSealedBlockAvx512(const PackedRunView& run, const std::byte* block, int block_idx,
                             float* values);

}  // namespace kvlathe
