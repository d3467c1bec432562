// Attention of a few query rows over the blocks of one KV head, on one thread. A call does one item
// of the host's plan and writes a partial result; partial results are merged
// (cpu/attention/partial.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "format/codebook/codebook.h"
#include "format/keys.h"
#include "format/mean_angles.h"
#include "format/packed_layout.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

// The window of a row that sees everything up to itself.
inline constexpr int kNoWindow = 1 << 30;

// One sealed run of a head: blocks [first_block, first_block + n_blocks) of AttendParams::blocks.
struct PackedRun {
  int first_block = 0;  // negative where the first blocks of the run are not among `blocks`
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  EntryClass entry_class = EntryClass::kMiddle;
  bool is_open = false;  // blocks with coded rows that are not sealed yet (coded_rows.h)
  const std::byte* record = nullptr;
  const std::byte* layer_record = nullptr;
};

// The sealed part of a head: one run after the other from the first block; later blocks are plain,
// or the open run.
struct PackedHead {
  PackedFormat format;
  HeadStorage storage;
  int kv_head_idx = 0;  // in its layer
  int n_kv_heads = 1;
  int layer_rank_v = 0;  // the sum of rank_v over the heads of the layer
  const PackedRun* runs = nullptr;
  int n_runs = 0;
  PackedRun open;                             // with n_blocks 0, blocks behind the runs are plain
  const LayerCodebooks* codebooks = nullptr;  // set where the format has codebooks
  // The angles of AttendParams::blocks, where the format keeps keys as they were before RoPE.
  KeyRotation rotation;
};

// What queries add to the scores of all entries of blocks because keys have lost a mean there that
// turns with their positions (format/mean_angles.h): for tokens 32 + d and 31 - d of a block the
// sum and the difference of sum over pairs of weight cos and of sum over pairs of weight sin, each
// at d + 1/2.
struct TurningMean {
  // By blocks from kv_begin on and by rows, kMeanWeights from row to row: those of the sines of all
  // pairs, then those of the cosines.
  const float* weights = nullptr;
  const float* cos = nullptr;  // [n_pairs][kHalfBlock]
  const float* sin = nullptr;
  int n_pairs = 0;  // 0: no mean was taken off. A multiple of 8, at most kMostTurningPairs
};
inline constexpr int kMeanWeights = 2 * kMostTurningPairs;

// Query rows of one KV head over a range of its entries. Ranks are multiples of 16 and at most
// MostChannels(); visible entries are finite. Blocks may lie anywhere; each is fetched while the
// one before it is read.
//
// Rows are packed token-major: row = t * gqa_group + h, so that all query heads that share the KV
// head read each block once. The row of token t sees entries < first_visible + t (causal order), of
// those the last `window`, and this item computes the part of them in [kv_begin, kv_end). Blocks
// below the window of the first row are never read.
struct AttendParams {
  BlockShape shape;
  int gqa_group = 1;
  int n_rows = 0;           // n_tokens * gqa_group
  const void* q = nullptr;  // [n_rows, rank_k] row_type, not scaled
  int64_t q_stride = 0;     // elements from row to row
  const std::byte* const* blocks =
      nullptr;  // block b holds entries [b * kBlockSize, (b + 1) * kBlockSize)
  const PackedHead* packed = nullptr;  // null: every block is plain
  TurningMean mean;
  int kv_begin = 0;        // multiple of kBlockSize
  int kv_end = 0;          // exclusive; rows past it in the last block are never used
  int first_visible = 0;   // end of the entries that token 0 sees; may be negative (nothing seen)
  int window = kNoWindow;  // at least 1
  float sm_scale = 1;      // > 0; most models have 1 / sqrt(original head_dim)
  float score_cap = 0;     // scores become cap tanh(score / cap) of what sm_scale makes; 0: stay
  // [n_rows] added to q k of all entries where there is a cap: what their keys have lost; null: 0.
  const float* score_offsets = nullptr;
  // Whether the bits of a row must not depend on the rows beside it. With AVX-512 that costs time
  // on sealed blocks with exact entries: few rows would otherwise add these to their sums instead
  // of decoding the blocks.
  bool is_deterministic = false;
  // Whether codes of few bits are not multiplied as bytes, where the instruction set would do so.
  bool is_exact = false;
  // The partial result, in which o is not divided by row_sum. A row that sees nothing in the range
  // gets row_max = -infinity, row_sum = 0, o = 0. Where the call continues, o, row_max and row_sum
  // hold the partial result of other entries, to which those of the range are added.
  bool continues = false;
  float* o = nullptr;  // [n_rows, rank_v]
  int64_t o_stride = 0;
  float* row_max = nullptr;  // [n_rows] maximum of the scaled scores
  float* row_sum = nullptr;  // [n_rows] sum of exp(score - row_max)
  // If it is not null, the scores are written to it as well: q k, not scaled (where there is a cap,
  // what times sm_scale is the capped score), of entry e in column e - kv_begin of its row. Columns
  // of entries that a row does not see are undefined. There must be no window then.
  float* scores = nullptr;    // [n_rows, scores_stride]
  int64_t scores_stride = 0;  // a multiple of kBlockSize that holds the range
};

// The same over a few uncompressed rows, which are the sink: K [n_entries, head_dim] and V
// [n_entries, rank_v], both row-major in row_type. q [n_rows, head_dim] is the query before any
// basis. The call writes a partial result of its own.
struct AttendRowsParams {
  DType row_type = DType::kBf16;
  int head_dim = 0;
  int rank_v = 0;
  int gqa_group = 1;
  int n_rows = 0;
  const void* q = nullptr;
  int64_t q_stride = 0;
  const void* k = nullptr;
  const void* v = nullptr;
  int n_entries = 0;
  int first_visible = 0;
  int window = kNoWindow;
  float sm_scale = 1;
  float score_cap = 0;
  const float* score_offsets = nullptr;  // as AttendParams has them
  float* o = nullptr;
  int64_t o_stride = 0;
  float* row_max = nullptr;
  float* row_sum = nullptr;
};

// Rows that are written into a block, as its entries [first_slot, first_slot + n_rows).
struct AppendParams {
  BlockShape shape;
  std::byte* block = nullptr;
  int first_slot = 0;
  int n_rows = 0;
  const void* k = nullptr;  // [n_rows, rank_k] row_type
  int64_t k_stride = 0;
  const void* v = nullptr;  // [n_rows, rank_v] row_type
  int64_t v_stride = 0;
};

// There is one set for each instruction set and row type. AMX has no products of F32, so AVX-512
// serves its F32 rows.
//
// With Bf16 rows the sets that have BF16 dots round the probabilities of blocks to Bf16 and sum the
// rounded ones, so the weights of a row still add up to 1; scores, maxima, sums and o are F32.
struct AttendKernels {
  // `scratch` has kAttendScratchBytes, is 64-byte aligned and belongs to the calling worker.
  void (*attend)(const AttendParams& params, std::byte* scratch);
  void (*attend_rows)(const AttendRowsParams& params);
  void (*append)(const AppendParams& params);
};

inline constexpr int64_t kAttendScratchBytes = 592 << 10;

// The fastest set for `isa` and rows of `row_type`.
const AttendKernels& GetAttendKernels(Isa isa, DType row_type);

}  // namespace kvlathe
