// What the backend of a machine is told of the attention of a layer: a job for each KV head of each
// sequence. Rows of a cache are named by ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/entry_table.h"
#include "format/rows/block_layout.h"
#include "machine/device.h"
#include "machine/residents.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

// What the tokens of a step see where several positions become one entry (format/open_entry.h).
// Token t sees the first n_closed[t] entries of the blocks. Of the entry that it joined itself, it
// sees the state right after it joined: row t here.
struct MergedRows {
  const int* n_closed = nullptr;  // [n_tokens], never falls; -1 for tokens that the sink keeps
  ObjectPlace k;                  // [n_tokens, rank_k] row_type
  int64_t k_stride = 0;
  ObjectPlace v;  // [n_tokens, rank_v] row_type
  int64_t v_stride = 0;
};

// What one head holds of the latents that it shares with others.
struct LatentSliceIds {
  std::span<const ObjectId> blocks;  // as HeadJob::blocks
  SealedHead packed;
  ObjectPlace sink_v;  // as SinkIds::v
};

// Describes a head whose keys are stored as latents from before RoPE: LatentHead with ids in place
// of addresses.
struct LatentIds {
  LatentMapId map;  // none: keys are stored as they are
  int key_dim = 0;  // LatentMapView::head_dim: numbers of all keys that a row of latents becomes
  // The slices of all heads that share the latents, in their order; the job's own is one of them.
  // Empty if the head has latents of its own.
  std::span<const LatentSliceIds> slices;
  KeyRotationId rotation;  // as LatentHead::rotation
  // Positions of the entries where some were dropped. Then cos and sin, [position][half], are used
  // in place of the rotation.
  EntryTableId positions;
  SortedPositionsId sorted;  // of the first blocks, where they were sorted; cos and sin likewise
  ObjectPlace cos, sin;

  bool empty() const { return map.is_null(); }
  // How many numbers an output row has where the rows of blocks have rank_v.
  int output_width(int rank_v) const {
    return slices.empty() ? rank_v : rank_v * static_cast<int>(slices.size());
  }
};

// The frames in which keys of blocks are turned, and the mean that they have lost before that
// (format/keys.h).
struct FrameIds {
  // The map of queries for each of the KV heads of the model that the head joins; none: there are
  // no frames, and queries of the job are mapped.
  std::span<const WeightId> maps;
  // With frames: what keys have lost after they turned, [n_joined, head_dim] F32; null: nothing.
  ObjectPlace key_offset;
  int n_joined = 1;  // KV heads of the model that the head joins
  // What the first n_pairs pairs of channels have lost before they turned, [n_joined, head_dim]
  // F32, and the table of MeanAngles (format/mean_angles.h).
  ObjectPlace turning_mean, mean_angles;
  int n_pairs = 0;       // 0: they have lost nothing
  ObjectPlace cos, sin;  // [position][half]
  int half = 0;
  int n_absolute = 0;      // AbsolutePairs
  float way_back = 1;      // KeyRotationId::way_back
  int head_dim = 0;        // of the model
  int first_position = 0;  // of entry 0 of the blocks
  int first_place = 0;     // of entry 0 in its frame
};

// The ways back from the rows of blocks to those of the KV heads of the model that a head joins:
// many rows of queries may be better off where a block is made of the model's rows again. A machine
// need not do so.
struct RebuildIds {
  // By KV head of the model. [head_dim, rank_k] Bf16: keys of blocks as they meet queries before
  // any basis (those of their frame, where there are frames). None: blocks are read as they are.
  std::span<const WeightId> keys;
  // [head_dim, rank_v] Bf16: values; none: values stay as they are.
  std::span<const WeightId> values;
  // [rank_v, head_dim] F32, as many: the pseudo-inverses of those of values.
  std::span<const WeightId> outputs;
  int head_dim = 0;  // of the model
};

// Positions that a head keeps apart from its blocks.
struct SinkIds {
  ObjectPlace k;  // [n, head_dim] row_type, before any basis
  ObjectPlace v;  // [n, BlockShape::sink_value_width()] row_type
  int n = 0;
  int first_visible = 0;  // how many of them token 0 sees; token t sees t more, at most n
  int window = 0;         // token 0 sees this many of all positions before it; 0: all
};

// How a query's product with a key becomes its score: scale q k, and where cap is not 0 of that
// cap tanh(score / cap).
struct ScoreRule {
  float scale = 1;
  float cap = 0;
};

// The attention of one KV head of one sequence in a layer of this step. New rows are already in the
// blocks. What lies in the cache is named by ids of `device`, everything else by places in the
// memory of the machine that computes. n_closed and noise are part of the plan, on the host.
struct HeadJob {
  Device* device = nullptr;
  BlockShape shape;
  int head_dim = 0;   // width of q_full and of sink keys
  int gqa_group = 1;  // query heads that share this KV head
  int n_tokens = 0;   // query tokens; rows are token-major: row = t * gqa_group + h
  ObjectPlace q;      // [n_tokens * gqa_group, rank_k] row_type, in the key basis, not
                      // scaled; with latents q_full; not used with maps of frames
  int64_t q_stride = 0;
  ObjectPlace q_full;  // [n_tokens * gqa_group, head_dim] row_type; used when sinks.n > 0, with
                       // frames, where keys have lost a mean that turns, where blocks can be
                       // rebuilt, and with lost_keys
  int64_t q_full_stride = 0;
  std::span<const ObjectId> blocks;  // block b holds entries [b * kBlockSize, (b + 1) * kBlockSize)
  SealedHead packed;                 // its runs are the first blocks; without runs all are plain
  LatentIds latents;
  FrameIds frames;
  RebuildIds rebuilt;
  int n_entries = 0;  // entries in the blocks, those of this step included
  // How many entries of the blocks token 0 sees; token t sees first_visible + t. Negative while the
  // first tokens of the step still fill the sink.
  int first_visible = 0;
  // A token sees only the last `window` of those entries; 0: all of them. Blocks below the window
  // of token 0 may be null.
  int window = 0;
  SinkIds sinks;
  // [head_dim] F32, in the channels of q_full: what the keys of all entries have lost, sinks' too,
  // that attention does not give them back; null: nothing. All scores of a query are less by the
  // same number then, which only matters with a cap or sink logits.
  ObjectPlace lost_keys;
  // [gqa_group] F32: what counts in the sum that the probabilities of a query head are divided by
  // as a score without a value does, whatever its tokens see; null: nothing.
  ObjectPlace sink_logits;
  // The output of head h of token t is output_width() numbers of out_type at
  // out + t * out_stride + h * out_head_stride, with zeros behind them up to the next head. A token
  // that sees nothing gets zeros.
  ObjectPlace out;
  DType out_type = DType::kF32;  // kF32 or kBf16
  int64_t out_stride = 0;        // elements
  int64_t out_head_stride = 0;   // elements; 0: output_width()

  // The table to whose sums the rows of tokens from first_scored on add their attention, or raise
  // them to it (takes_largest), for which there must be no window. Empty if nobody asks for scores.
  EntryTableId scored;
  int first_scored = 0;
  const ScoreNoise* noise = nullptr;  // that of token 0; null: the probabilities are added as is
  bool takes_largest = false;

  // Set where positions are merged: then there is no window and nothing is scored, n_entries is
  // what the last token sees, and first_visible what the first one sees, which is at least 0.
  MergedRows merged;

  // Numbers of an output row. Entries of blocks add nothing to those behind their rank_v.
  int output_width() const {
    return latents.slices.empty() ? shape.sink_value_width() : latents.output_width(shape.rank_v);
  }
  bool is_scored() const { return !scored.empty() && first_scored < n_tokens; }
};

}  // namespace kvlathe
