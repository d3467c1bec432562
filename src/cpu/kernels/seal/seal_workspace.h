// What the parts of sealing share: the run of a head as they see it, and the memory of a worker.
#pragma once

#include "cpu/kernels/seal/seal.h"
#include "cpu/kernels/seal/seal_kernels.h"
#include "tensor/buffer.h"

namespace kvlathe {

// One run of one head of a job.
struct HeadRun {
  const SealKernels* kernels;
  DType row_type;
  PackedShape shape;
  const SealJob* job;
  int head_idx;

  const SealHead& head() const { return job->heads[head_idx]; }
  const std::byte* keys(int block_idx) const { return head().blocks[block_idx]; }
  bool has_coded_rows() const { return FactsOf(shape.format.codec).codes_open_rows; }
  const std::byte* values(int block_idx) const {
    const int64_t element_bytes = has_coded_rows() ? 1 : SizeOf(row_type);
    return keys(block_idx) + int64_t{kBlockSize} * shape.rank_k * element_bytes;
  }
};

struct SealSizes {
  int64_t max_rank = 0;
  int64_t column_keys = 0;     // keys of the longest column whose ends are looked for
  int64_t residual_words = 0;  // words of the largest residual, and of a block with exact entries
  int64_t factor_words = 0;    // words of the largest A
  int64_t losses = 0;          // exact entries of a run that wait for a low-rank part
  int lowrank = 0;
  int64_t quotients = 0;   // elements of K of a run, with a codebook and exact entries
  bool has_parts = false;  // where bits are split, some channels of a block of V are taken apart
  bool has_exact = false;
  int64_t tile_words = 0;  // of the largest tile that is balanced

  friend bool operator==(const SealSizes&, const SealSizes&) = default;
};

// The most scales that a block has per token, or per channel of its groups of tokens. Groups have
// at least 16 channels or 16 tokens.
inline constexpr int kMaxBlockScales = kBlockSize * kMaxPackedRank / 16;

// The memory of a worker. It fits in L2 but for the residual and the columns of very long runs.
struct SealWorkspace {
  // Grows to at least `sizes`. The contents are lost.
  Status Reserve(const SealSizes& sizes);

  float* x;                     // a block of rows, by lines
  float* part;                  // some channels of a block of V, by lines; where bits are split
  uint32_t* masks;              // [pairs][lines]
  uint64_t* found;              // [channels]: tokens of a block that may be exact entries
  int* lane_counts;             // of the exact entries of a block: [tokens of K or channels of V]
  uint8_t* lane_places;         // [lanes][kMaxPackedRank]
  std::byte* columns[2];        // keys
  float *tail_high, *tail_low;  // of a column each: channels of K, tokens of V
  int64_t *high_ties, *low_ties;
  float *low, *high;                 // ranges, [kMaxBlockScales]
  float *scales, *minima;            // [kMaxBlockScales]
  float *word_scales, *word_minima;  // the same, each for two words of a line
  float* residual;
  float* quotients;        // magnitudes, of a run: by block, by lines
  float *q, *p, *doubled;  // of ResidualParams
  float* tile;             // a tile, [pairs][words] (seal_balance.h)
  float* balance;          // of its elements, each twice
  float* losses;           // what the codes of exact entries lose, of a run (seal_exact.h)

 private:
  Buffer memory_;
};

}  // namespace kvlathe
