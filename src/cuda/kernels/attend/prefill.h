// Attention of many rows on a GPU: those of a prompt, or of any job whose codec no faster kernel
// reads. The threads of a block expand each block of a head once, to BF16 in shared memory, and
// every warp takes 16 rows over it, in the manner of FlashAttention-2 (Dao 2023, arXiv 2307.08691):
// sums of scores, weights and values stay in registers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attend/expand.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// The attention of one KV head of one sequence (HeadJob, machine/attention/head_job.h, whose fields
// mean the same) with addresses. Rows are in BF16; ranks and head_dim are multiples of 16.
struct PromptHead {
  int rank_k = 0;
  int rank_v = 0;
  int width = 0;  // of an output row, at least rank_v
  int gqa_group = 1;
  int stored_rank_k = 0;  // of K of plain blocks: rank_k where keys are not rebuilt
  // Not scaled, of rank_k numbers: that of row t * gqa_group + h is t token strides and h strides
  // behind the first.
  const uint16_t* q = nullptr;
  int64_t q_stride = 0;
  int64_t q_token_stride = 0;
  const uint32_t* blocks = nullptr;  // places, in steps of kPlaceBytes from the base
  const ExpandRun* runs = nullptr;   // one after the other from the first block
  int n_runs = 0;                    // blocks behind them are plain
  // K of all blocks, as RebuildHead::keys (rebuild.h); null: K is read from the blocks.
  const std::byte* rebuilt_keys = nullptr;
  int first_visible = 0;
  int window = 0;  // at least 1, or 0: all
  // Where there are sinks: likewise, of head_dim numbers.
  const uint16_t* q_full = nullptr;
  int64_t q_full_stride = 0;
  int64_t q_full_token_stride = 0;
  int head_dim = 0;
  const uint16_t* sink_k = nullptr;  // [n_sinks, head_dim]
  const uint16_t* sink_v = nullptr;  // [n_sinks, width]
  int n_sinks = 0;
  int sinks_visible = 0;
  int sink_window = 0;  // as window
  // [gqa_group]: HeadJob::sink_logits; null: nothing. The item of entry 0 adds them.
  const float* sink_logits = nullptr;
  // [head_dim]: HeadJob::lost_keys, with q_full; null: nothing.
  const float* lost_keys = nullptr;
  void* out = nullptr;
  DType out_type = DType::kF32;  // kF32 or kBf16
  int64_t out_stride = 0;        // elements, from token to token
  int64_t out_head_stride = 0;   // elements, from head to head
  int n_cleared = 0;             // numbers behind the width that become zeros
  // Where scores are wanted: those of rows from first_scored_row on, which no items share, and
  // their maxima and sums, as EntryScoreItem (cuda/kernels/retain/entry_scores.h) takes them.
  float* scores = nullptr;    // [rows, scores_stride], of entries of blocks, capped and not scaled
  int64_t scores_stride = 0;  // a multiple of kBlockSize that holds the entries
  float* row_max = nullptr;
  float* row_sum = nullptr;
  int first_scored_row = 0;
};

// Rows [row_begin, row_begin + n_rows) of a head over entries [entry_begin, entry_end), as
// WorkItem (machine/attention/plan.h).
struct PromptItem {
  int head = 0;
  int row_begin = 0;
  int n_rows = 0;
  int entry_begin = 0;  // multiple of kBlockSize; the item of entry 0 adds the sinks
  int entry_end = 0;
  int first_run = 0;  // of the head: that of the first entry that is read, or an earlier one
  // Where in `partials` the partial result goes (PromptPartialFloats); -1: the item finishes its
  // rows.
  int64_t partial_offset = -1;
};

// As PartialFloats (machine/attention/plan.h), whose header is not for compilers of GPUs.
constexpr int64_t PromptPartialFloats(int n_rows, int width) {
  return int64_t{n_rows} * width + 2 * ((int64_t{n_rows} + 15) / 16 * 16);
}

// Rows whose entries several items share. Their partial results follow each other.
struct PromptSplit {
  int head = 0;
  int row_begin = 0;
  int n_rows = 0;
  int n_parts = 0;
  int64_t partial_offset = 0;
};

struct PromptParams {
  const std::byte* base = nullptr;  // of places
  const PromptHead* heads = nullptr;
  const PromptItem* items = nullptr;
  int n_items = 0;
  const PromptSplit* splits = nullptr;
  int n_splits = 0;
  float sm_scale = 1;
  float score_cap = 0;  // of scaled scores; 0: none
  float* partials = nullptr;
  // The largest of all heads.
  int most_rank_k = 0;  // head_dim of heads with sinks included
  int most_rank_v = 0;
  int most_width = 0;
  int most_rows = 0;  // of an item, at most kMostPromptRows
  WindowTables tables;
};

inline constexpr int kMostPromptRows = 128;

// Bytes of shared memory that a launch takes for items of `rows` rows. A GPU has 99 KiB (sm_86,
// sm_89), 163 KiB (sm_80) or 227 KiB (sm_90) for a block of threads.
int64_t PromptSharedBytes(int rows, int most_rank_k, int most_rank_v);

// Runs all items and then merges the splits.
void AttendPrompt(cudaStream_t stream, const PromptParams& params);

}  // namespace kvlathe::cuda
