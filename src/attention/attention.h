// Attention of a ragged batch over compressed blocks: plan on the host, run on the workers, merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "attention/schedule.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "device/device.h"
#include "device/sealed_runs.h"
#include "format/entry_table.h"
#include "format/latent_map.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

// Where positions become entries of several (kv/retention/merge.h): what the tokens of a step see.
// Token t sees the first n_closed[t] entries of the blocks, and of the entry that it joined what
// was there after it: row t here.
struct MergedRows {
  const int* n_closed = nullptr;  // [n_tokens], never falls; -1 for tokens that the sink keeps
  const void* k = nullptr;        // [n_tokens, rank_k] row_type
  int64_t k_stride = 0;
  const void* v = nullptr;  // [n_tokens, rank_v] row_type
  int64_t v_stride = 0;
};

// What one of the heads that share latents (attention/latents.h) holds of them.
struct LatentSliceIds {
  std::span<const ObjectId> blocks;  // as HeadJob::blocks
  SealedHead packed;
  ObjectPlace sink_v;  // as SinkIds::v
};

// A head whose keys are stored as latents from before RoPE: LatentHead with ids.
struct LatentIds {
  LatentMapView map;  // rank 0: keys are stored as they are
  // Of all heads that share the latents, in their order; the job's own is one of them. Empty: the
  // head has latents of its own.
  std::span<const LatentSliceIds> slices;
  KeyRotation rotation;    // as LatentHead::rotation
  EntryTableId positions;  // where entries were dropped; then cosines and sines [position][half]
  const float* cos = nullptr;
  const float* sin = nullptr;

  bool empty() const { return map.rank == 0; }
  // Numbers of an output row where blocks hold rank_v of them.
  int output_width(int rank_v) const {
    return slices.empty() ? rank_v : rank_v * static_cast<int>(slices.size());
  }
};

// Positions that a head keeps apart from its blocks.
struct SinkIds {
  ObjectPlace k;  // [n, head_dim] row_type, before any basis
  ObjectPlace v;  // [n, rank_v] row_type
  int n = 0;
  int first_visible = 0;  // of them, that token 0 sees; token t sees t more, at most n
  int window = 0;         // of all positions that token 0 sees; 0: all
};

// One (sequence, KV head) of a layer in this step. New rows are already in the blocks. What lies in
// the cache is named by ids of `device`; queries and outputs are memory of the workers.
struct HeadJob {
  Device* device = nullptr;
  BlockShape shape;
  int head_dim = 0;         // width of q_full and of sink keys
  int gqa_group = 1;        // query heads that share this KV head
  int n_tokens = 0;         // query tokens; rows are token-major: row = t * gqa_group + h
  const void* q = nullptr;  // [n_tokens * gqa_group, rank_k] row_type, in the key basis, not
                            // scaled; with latents q_full
  int64_t q_stride = 0;
  const void* q_full = nullptr;  // [n_tokens * gqa_group, head_dim] row_type; used when sinks.n > 0
  int64_t q_full_stride = 0;
  std::span<const ObjectId> blocks;  // block b holds entries [b * kBlockSize, (b + 1) * kBlockSize)
  SealedHead packed;                 // its runs are the first blocks; without runs all are plain
  LatentIds latents;
  int n_entries = 0;  // entries in the blocks, those of this step included
  // Entries of the blocks that token 0 sees; token t sees first_visible + t. Negative while the
  // first tokens of the step still fill the sink.
  int first_visible = 0;
  // Of those, a token sees the last `window`; 0: all. Blocks below the window of token 0 may be
  // null.
  int window = 0;
  SinkIds sinks;
  // Head h of token t: output_width() numbers at out + t * out_stride + h * out_head_stride,
  // row_type, and zeros behind them up to the next head. Zeros where nothing is seen.
  void* out = nullptr;
  int64_t out_stride = 0;       // elements
  int64_t out_head_stride = 0;  // elements; 0: output_width()

  // Rows of tokens from first_scored on add their attention to the sums of this table (without a
  // window). Empty: nobody asks.
  EntryTableId scored;
  int first_scored = 0;
  const ScoreNoise* noise = nullptr;  // null: the probabilities themselves; of token 0

  // With n_closed, no window and no scores; n_entries is that of the last token and first_visible
  // that of the first, at least 0.
  MergedRows merged;

  int output_width() const { return latents.output_width(shape.rank_v); }
  bool is_scored() const { return !scored.empty() && first_scored < n_tokens; }
};

// Plans on the calling thread, then one parallel region in which ids become addresses item by item,
// and a second one only when rows were split along their entries, a third when these are scored.
// Scratch, partial results and scores are kept from call to call.
class Attention {
 public:
  Attention(ThreadPool* pool, Isa isa);
  ~Attention();
  // Every row gets the bits that it has alone: kBalanced, which cuts entries where the rest of the
  // batch and the number of workers say, gives way to kLpt, and AMX to AVX-512, whose arithmetic on
  // a row does not depend on the rows beside it.
  void set_deterministic(bool deterministic);
  // All jobs of one layer. sm_scale = 1 / sqrt(the model's head_dim), whatever the rank.
  // kResourceExhausted when the system has no memory for partial results or scores; nothing was
  // computed then.
  Status Run(std::span<const HeadJob> jobs, float sm_scale, Schedule schedule);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
