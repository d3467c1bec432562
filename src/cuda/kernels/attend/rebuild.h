// Keys of blocks as the model has them, on a GPU: many rows of queries meet keys that turn by their
// place or that have lost a mean (format/keys.h) best where these are made whole once. Queries stay
// as they are then, and values are read as they are stored.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attend/expand.h"

namespace kvlathe::cuda {

// One KV head of the model of a head of a cache: FrameIds and RebuildIds
// (machine/attention/head_job.h, whose fields mean the same) with addresses.
struct RebuildHead {
  int rank_k = 0;                    // of blocks
  const uint32_t* blocks = nullptr;  // as PromptHead has them
  const ExpandRun* runs = nullptr;
  int n_runs = 0;
  int n_entries = 0;
  const std::byte* map = nullptr;  // [head_dim, rank_k] Bf16
  int64_t map_row_bytes = 0;
  int head_dim = 0;
  bool has_frames = false;
  const float* key_offset = nullptr;    // [head_dim], or null
  const float* turning_mean = nullptr;  // [head_dim]; not read without pairs
  int n_pairs = 0;
  const float* cos = nullptr;  // [position][half]
  const float* sin = nullptr;
  int half = 0;
  int n_absolute = 0;
  float unit = 1;  // what takes the amplitude off cosines and sines
  int first_position = 0;
  int first_place = 0;
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
  int most_rank_k = 0;
  int most_head_dim = 0;
  WindowTables tables;
};

int64_t RebuildSharedBytes(int most_rank_k, int most_head_dim);

void RebuildKeys(cudaStream_t stream, const RebuildParams& params);

}  // namespace kvlathe::cuda
