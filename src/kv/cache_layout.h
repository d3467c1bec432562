// What the cache of a model looks like under a spec: block shapes per layer and KV head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "format/block_layout.h"
#include "format/packed_layout.h"
#include "kv/retention/plan.h"

namespace kvlathe {

// When and how plain blocks are sealed (kv/seal/seal_schedule.h).
struct SealPlan {
  PackedFormat format;
  int prompt_run = 512;       // positions of a prompt that are sealed together; 0: the whole prompt
  int buffer = 64;            // positions that are sealed together while decoding
  int newest = 0;             // entries, the last ones, of which none is sealed
  int power_loops = 3;        // of the low-rank solver
  double repaired_share = 1;  // of the prompt: its newest runs have the low-rank residual
  int window = 0;             // newest positions that are seen beside the sinks; 0: all
  bool codes_open_rows = false;  // BlockShape::has_coded_rows of all heads
  // Of a rotated format, whose runs find their bases.
  double kept_share = 0;         // of the dimensions of every head; 0: the ranks are a basis's
  bool gathers_queries = false;  // heads keep Q^T Q until they have found theirs

  friend bool operator==(const SealPlan&, const SealPlan&) = default;
};

struct CacheLayout {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_sink = 0;  // first positions kept as plain rows: K [n_sink, head_dim], V [n_sink, rank_v]
  std::vector<BlockShape> shapes;  // [n_layers * n_kv_heads]
  // How many last positions a layer attends to (0: all), as the model wants it or the SealPlan;
  // [n_layers], empty where no layer has a window. Blocks of a layer that no later position can see
  // are given back; sinks stay, unseen if the window is the model's.
  std::vector<int> windows;
  std::optional<SealPlan> seal;  // none: every block stays plain
  // None: every entry stays. Without a window only; with seal, a plan with slack or one that drops
  // entries of the prompt alone, and a SealPlan that waits for the prompt's end.
  std::optional<RetentionPlan> retention;
  // Keys are stored from before RoPE: where entries are dropped, attention reads their positions.
  bool has_latent_keys = false;

  int window(int layer_idx) const { return windows.empty() ? 0 : windows[layer_idx]; }
  bool HasWindow() const { return !windows.empty(); }
  // Whether all layers have the same window, or none.
  bool HasOneWindow() const {
    return std::ranges::all_of(windows, [&](int w) { return w == window(0); });
  }
  // Whether positions become fewer entries, whose number each head has of its own.
  bool MergesEntries() const { return retention.has_value() && retention->merge.has_value(); }
  bool DropsEntries() const { return retention.has_value() && !retention->merge.has_value(); }
  // Whether heads close their entries at positions of their own: then each is sealed by itself, as
  // if it were the only one of its layer.
  bool HasRunsOfHeads() const {
    return seal.has_value() && MergesEntries() && retention->merge->every == 0;
  }
  // Whether each head keeps the Gram matrix of its queries until it has sealed a run.
  bool GathersQueries() const { return seal.has_value() && seal->gathers_queries; }
  int n_heads_per_run() const { return HasRunsOfHeads() ? 1 : n_kv_heads; }
  // Whether bytes of what the heads of a run share count with this one.
  bool OwnsLayerRecord(int kv_head_idx) const { return kv_head_idx % n_heads_per_run() == 0; }
  // Whether the window leaves the sinks in sight.
  bool SparesSinks() const { return seal.has_value() && seal->window > 0; }
  // Whether no entry is dropped any more, so that positions and votes are not needed.
  bool RetentionIsOver(int64_t n_tokens, int64_t n_prompt) const {
    return retention.has_value() && !has_latent_keys && !retention->prunes_decode &&
           n_tokens >= n_prompt;
  }

  // Whether plain blocks hold whole keys until the prompt ends (RetentionPlan::reads_whole_keys).
  bool ReadsWholeKeys() const { return DropsEntries() && retention->reads_whole_keys; }

  const BlockShape& shape(int layer_idx, int kv_head_idx) const {
    return shapes[layer_idx * n_kv_heads + kv_head_idx];
  }
  // Of a plain block of this head, [n_layers * n_kv_heads], that holds whole keys.
  BlockShape WholeKeyShape(size_t head_idx) const {
    return {head_dim, shapes[head_idx].rank_v, shapes[head_idx].row_type};
  }
  // Of its plain blocks once n_tokens positions are there.
  BlockShape PlainShapeAt(size_t head_idx, int64_t n_tokens, int64_t n_prompt) const {
    return ReadsWholeKeys() && n_tokens < n_prompt ? WholeKeyShape(head_idx) : shapes[head_idx];
  }
};

// Bytes of a 16-bit cache of n_tokens that are all attended to.
constexpr int64_t UncompressedBytes(int n_layers, int n_kv_heads, int head_dim, int64_t n_tokens) {
  return int64_t{2} * 2 * n_layers * n_kv_heads * head_dim * n_tokens;
}

// Every object of the cache is a multiple of this and starts at one.
inline constexpr int64_t kObjectAlignment = 64;

// Blocks of a head whose rows are stored in `ranks`; where the plan (null: none) rotates rows, in
// all of their dimensions until they are sealed.
BlockShape BlockShapeOf(const HeadRanks& ranks, int head_dim, DType row_type, const SealPlan* seal);

// Objects of one KV head: its sink rows (0 without sinks), one block, the table of n_blocks
// pointers.
int64_t SinkBytes(const CacheLayout& layout, const BlockShape& shape);
int64_t BlockObjectBytes(const BlockShape& shape);
int64_t TableBytes(int64_t n_blocks);

// Bytes of a 16-bit cache of what the model attends to after n_tokens: in each layer as many
// positions as the model's own window has there. The reference of kv_fraction for this layout.
int64_t ReferenceBytes(const CacheLayout& layout, int64_t n_tokens);

// Of the entries of one block under retention: their positions, and their votes where there are.
int64_t EntryTableBytes(const CacheLayout& layout, int64_t n_blocks);

// Of the newest entry of a head where entries are merged (OpenEntry); 0 elsewhere.
int64_t OpenEntryBytes(const CacheLayout& layout, const BlockShape& shape);

// Of the sum of q q^T over the queries of a KV head, [head_dim, head_dim] F32 of which the upper
// triangle counts; 0 where queries are not gathered.
int64_t QueryGramBytes(const CacheLayout& layout);

// Blocks that n_tokens positions need in a head that keeps every position.
int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens);

// Blocks of a head after a step that ended at n_tokens, sealed ones and those that fell out of the
// window included. Where the model decides what merges: if nothing does.
int64_t HeldBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// Blocks of a layer, from the oldest, that no position from n_tokens on can see. 0 without a
// window.
int64_t BlocksOutOfWindow(const CacheLayout& layout, int layer_idx, int64_t n_tokens);

// Bytes by part, at the allocator.
struct KvBytes {
  int64_t blocks = 0;
  int64_t sinks = 0;
  int64_t run_records = 0;  // and before the first run what its bases are to be found from
  int64_t layer_records = 0;
  int64_t tables = 0;
  int64_t entries = 0;  // positions and votes, or the open entries, under retention
  int64_t total() const { return blocks + sinks + run_records + layer_records + tables + entries; }
  void Add(const KvBytes& more) {
    blocks += more.blocks;
    sinks += more.sinks;
    run_records += more.run_records;
    layer_records += more.layer_records;
    tables += more.tables;
    entries += more.entries;
  }
};

// The prompt of a sequence that is not known to end yet.
inline constexpr int64_t kEndlessPrompt = std::numeric_limits<int64_t>::max();

// What decides the bytes of a sequence.
struct SequenceLength {
  int64_t n_tokens = 0;
  int64_t n_step = 1;                 // positions of the last step; matters with a window only
  int64_t n_prompt = kEndlessPrompt;  // matters where blocks are sealed
};

// Bytes that the objects and tables of one sequence occupy after a step (and its sealing): the
// closed formula that the allocator's count must equal. Over all layers and KV heads, with n_blocks
// = ceil(max(0, n_tokens - n_sink) / kBlockSize), for every head
//   SinkBytes + plain blocks * BlockObjectBytes + TableBytes(n_blocks)
//   + the objects of its runs and their table, or QueryGramBytes() where it has none,
// less what fell out of the windows of their layers before the step. Under retention n_blocks is
// HeldBlocks(), and until it is over EntryTableBytes(n_blocks) comes on top; where entries are
// merged OpenEntryBytes. Plain blocks have PlainShapeAt(). Where the model decides what merges: if
// nothing does. MergedParts tells when lengths are known.
KvBytes SequenceParts(const CacheLayout& layout, const SequenceLength& length);
inline int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_step = 1,
                             int64_t n_prompt = kEndlessPrompt) {
  return SequenceParts(layout, {n_tokens, n_step, n_prompt}).total();
}

// What a head holds where entries are merged. Blocks of it are counted where HasRunsOfHeads().
struct MergedLength {
  int n_entries = 0;
  int n_prompt_blocks = 0;  // that were sealed where the prompt ended
  int n_sealed_blocks = 0;  // these, and those that were sealed since

  friend bool operator==(const MergedLength&, const MergedLength&) = default;
};

// The same where the model decides what merges, or nothing is sealed: for the lengths of the heads,
// [n_layers * n_kv_heads].
KvBytes MergedParts(const CacheLayout& layout, std::span<const MergedLength> lengths);

// An upper bound of what the sequence occupies at any time while it grows to n_tokens in steps of
// at most max_step positions, what is set aside for sealing included; without a window and without
// sealing SequenceBytes.
int64_t PeakSequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                          int64_t n_prompt = kEndlessPrompt);

}  // namespace kvlathe
