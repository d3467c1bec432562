// Attention of few query rows over the blocks of KV heads on a GPU: steps that decode. The host
// splits the work into items (machine/attention/plan.h); a block of threads takes one item, and
// items that share rows are merged by a kernel of their own, in their order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attend/attend_layout.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// The most query rows of an item, and of positions that a head keeps apart.
inline constexpr int kMostDecodeRows = 16;
inline constexpr int kMostSinks = 64;

// Blocks [first_block, first_block + n_blocks) of a job that lie alike.
struct DecodeRun {
  int32_t first_block = 0;  // negative where the first blocks of the run are gone
  int32_t n_blocks = 0;
  int32_t layout_idx = 0;
  int32_t unused = 0;
  const std::byte* record = nullptr;
  const std::byte* layer_record = nullptr;
};

// What queries add to scores because keys have lost a mean that turns (format/mean_angles.h).
struct DecodeMean {
  const float* mean = nullptr;    // [n_joined, head_dim]
  const float* angles = nullptr;  // the table of MeanAngles
  const float* cos = nullptr;     // [position][half]
  const float* sin = nullptr;
  int32_t n_pairs = 0;  // 0: nothing. A multiple of 8, at most kMostTurningPairs
  int32_t n_joined = 1;
  int32_t half = 0;
  int32_t head_dim = 0;  // of the model
  int32_t first_position = 0;
  float way_back = 1;
};

// HeadJob (machine/attention/head_job.h) with addresses.
struct DecodeJob {
  const std::byte* base = nullptr;  // of the cache's memory
  const std::byte* q = nullptr;     // Bf16
  int64_t q_stride = 0;
  const std::byte* q_full = nullptr;
  int64_t q_full_stride = 0;
  int32_t first_place = 0;            // of DecodeParams::places
  int32_t first_run = 0;              // of DecodeParams::runs, which cover all blocks of the job
  const std::byte* sink_k = nullptr;  // [n_sinks, head_dim] Bf16
  const std::byte* sink_v = nullptr;  // [n_sinks, width] Bf16
  std::byte* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_head_stride = 0;
  DecodeMean mean;
  DType out_type = DType::kF32;
  int32_t rank_k = 0;
  int32_t rank_v = 0;
  int32_t width = 0;  // of an output row, at least rank_v
  int32_t head_dim = 0;
  int32_t gqa_group = 1;
  int32_t first_visible = 0;  // of token 0
  int32_t window = 0;         // 0: all
  int32_t n_sinks = 0;
  int32_t first_sinks_visible = 0;
  int32_t sink_window = 0;
  // [gqa_group]: HeadJob::sink_logits; null: nothing. The item of entry 0 adds them.
  const float* sink_logits = nullptr;
  // [head_dim]: HeadJob::lost_keys; null: nothing.
  const float* lost_keys = nullptr;
  // Where rows vote: what entry_scores.h (cuda/kernels/retain) wants of all of them. Null: nowhere.
  // [rows, scores_stride], capped and not scaled; undefined where nothing is seen.
  float* scores = nullptr;
  int64_t scores_stride = 0;
  float* row_max = nullptr;  // [rows], of the scaled and capped scores
  float* row_sum = nullptr;
};

struct DecodeItem {
  int32_t job_idx = 0;
  int32_t row_begin = 0;
  int32_t n_rows = 0;  // at most kMostDecodeRows
  int32_t entry_begin = 0;
  int32_t entry_end = 0;
  int32_t first_run = 0;  // of the job's: that of entry_begin or an earlier one
  // In floats of DecodeParams::partials, of PartialFloats(n_rows, width); -1: the item finishes its
  // rows.
  int64_t partial_offset = -1;
};

// Rows whose entries several items share, whose partial results follow each other.
struct DecodeSplit {
  int32_t job_idx = 0;
  int32_t row_begin = 0;
  int32_t n_rows = 0;
  int32_t n_parts = 0;
  int64_t partial_offset = 0;
};

// All arrays lie on the device.
struct DecodeParams {
  const uint32_t* places = nullptr;  // of blocks, in steps of kDeviceAlignment from DecodeJob::base
  const DecodeRun* runs = nullptr;
  const DecodeJob* jobs = nullptr;
  const DecodeItem* items = nullptr;
  int32_t n_items = 0;
  const AttendLayout* layouts = nullptr;
  const AttendTables* tables = nullptr;
  const DecodeSplit* splits = nullptr;
  int32_t n_splits = 0;
  float* partials = nullptr;
  float sm_scale = 1;
  float score_cap = 0;  // of scaled scores; 0: none
  int32_t n_warps = 1;
  // The largest of the jobs, for shared memory.
  int32_t max_rows = 8;  // of an item, 8 or 16
  int32_t max_rank_k = 0;
  int32_t max_rank_v = 0;
  int32_t max_sinks = 0;
  int32_t max_pairs = 0;
};

// Bytes of shared memory of a block of threads.
int64_t DecodeSharedBytes(const DecodeParams& params);
// As many warps as fit into `shared_bytes` of a block of threads, at most kMostDecodeWarps; 0:
// none.
inline constexpr int kMostDecodeWarps = 8;
int WarpsThatFit(DecodeParams params, int64_t shared_bytes);

// Runs all items, and then merges the splits. Results are the same whatever else runs.
void AttendDecode(cudaStream_t stream, const DecodeParams& params);

}  // namespace kvlathe::cuda
