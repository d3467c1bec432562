// Keys of blocks as the model has them, on a GPU: many rows of queries meet keys that turn by their
// place, that have lost a mean, or that are stored as latents (format/keys.h) best where these are
// made whole once. Queries stay as they are then, and values are read as they are stored.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attend/expand.h"

namespace kvlathe::cuda {

// Where stored keys are. Heads that share their latents have a slice of them each.
struct RebuildSlice {
  const uint32_t* blocks = nullptr;  // as PromptHead has them
  const ExpandRun* runs = nullptr;
  int n_runs = 0;
};

// By what keys turn, besides what frames have left.
enum class KeyTurn : uint8_t {
  kNone,
  kFrames,  // pairs from n_absolute on, by the start of the frame
  kBlocks,  // all pairs, by KeyRotation (format/codebook/codebook.h) from block 0 on
  // All pairs, by the positions of entries where these are kept, in the blocks that have any; the
  // others turn as with kBlocks.
  kPositions,
};

// One KV head of the model of a head of a cache: FrameIds, RebuildIds or LatentIds
// (machine/attention/head_job.h, whose fields mean the same) with addresses.
struct RebuildHead {
  const RebuildSlice* slices = nullptr;
  int n_slices = 1;  // tokens have scales (ExpandSide) only with one
  int slice_rank = 0;
  int n_entries = 0;
  const std::byte* map = nullptr;  // [head_dim, n_slices * slice_rank] Bf16
  int64_t map_row_bytes = 0;
  int head_dim = 0;
  const float* offset = nullptr;  // [head_dim], added before keys turn; null: nothing
  KeyTurn turn = KeyTurn::kNone;
  const float* cos = nullptr;  // [position][half]
  const float* sin = nullptr;
  const float* block_cos = nullptr;  // of block 0, as KeyRotation has them
  const float* block_sin = nullptr;
  int half = 0;
  int n_absolute = 0;
  float unit = 1;                       // what takes the amplitude off cosines and sines
  const float* turning_mean = nullptr;  // [head_dim]; not read without pairs
  int n_pairs = 0;
  int first_position = 0;
  int first_place = 0;
  // Of KeyTurn::kPositions: an EntryTable, and the SortedPositions of the first blocks.
  const std::byte* table = nullptr;
  bool has_sums = false;
  const std::byte* sorted = nullptr;
  int n_sorted_blocks = 0;
  bool is_sorted_wide = false;
  // [n_blocks][head_dim / 2][kBlockSize][2] Bf16: K of plain blocks from block 0 of the head on.
  std::byte* keys = nullptr;
};

// Blocks [first_block, first_block + n_blocks) of a head.
struct RebuildItem {
  int head = 0;
  int first_block = 0;
  int n_blocks = 0;
  int first_run = 0;  // that of the first block, or an earlier one
};

struct RebuildParams {
  const std::byte* base = nullptr;  // of places
  const RebuildHead* heads = nullptr;
  const RebuildItem* items = nullptr;
  int n_items = 0;
  int most_rank_k = 0;  // of all slices together
  int most_head_dim = 0;
  WindowTables tables;
};

int64_t RebuildSharedBytes(int most_rank_k, int most_head_dim);

void RebuildKeys(cudaStream_t stream, const RebuildParams& params);

}  // namespace kvlathe::cuda
