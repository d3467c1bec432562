// Keys that a cache holds as latents from before RoPE (docs/methods/palu.md). A block of them
// becomes a plain block of keys in scratch, for attention kernels that read only those: multiplied
// by the way back and turned to their positions. That costs kBlockSize * rank * head_dim products a
// block, however few rows of queries read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu_features.h"
#include "format/block_layout.h"
#include "format/codebook.h"
#include "kernels/cpu/attend/attend_packed.h"

namespace kvlathe {

struct LatentMapView {
  int rank = 0;                   // multiple of 16
  int head_dim = 0;               // multiple of 16
  const void* columns = nullptr;  // of the way back: [head_dim][rank] row_type
  const float* offset = nullptr;  // [head_dim], added to every key before it turns
  // The way back once more, for latents that are whole numbers of kUnitNumberStep: [head_dim][rank]
  // in steps of units[head_dim], as fine as no sum of such latents outgrows 32 bits. Null with F32
  // rows, for which 16 bits are too few.
  const int16_t* numbers = nullptr;
  const float* units = nullptr;
};

// The way from the latents of one KV head to its keys: k = latent F + offset.
class LatentMap {
 public:
  // F [rank, head_dim] row-major; offset [head_dim], or empty for none.
  LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
            DType row_type);

  LatentMapView view() const {
    return {.rank = rank_,
            .head_dim = head_dim_,
            .columns = columns_.data(),
            .offset = offset_.data(),
            .numbers = numbers_.empty() ? nullptr : numbers_.data(),
            .units = units_.data()};
  }
  int64_t n_bytes() const {
    return std::ssize(columns_) + static_cast<int64_t>(sizeof(int16_t)) * std::ssize(numbers_) +
           static_cast<int64_t>(sizeof(float)) * (std::ssize(offset_) + std::ssize(units_));
  }

 private:
  void RoundColumns(const std::vector<float>& columns);

  int rank_;
  int head_dim_;
  std::vector<std::byte> columns_;
  std::vector<int16_t> numbers_;
  std::vector<float> offset_, units_;
};

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
// may have more than 256 latents, for 4 kBlockSize bytes of scratch each.
inline constexpr int64_t kLatentScratchBytes = int64_t{kBlockSize} * 256 * 4 * (2 + 1 + 1);

// Fills block.tile. `scratch` is kLatentScratchBytes, 64-byte aligned.
using ReadLatentBlock = void (*)(const LatentBlock& block, std::byte* scratch);

// The fastest for `isa` and rows of `row_type`.
ReadLatentBlock GetLatentReader(Isa isa, DType row_type);

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
