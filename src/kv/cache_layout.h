// A layout says what the cache of a model looks like under a spec: the shapes of the blocks of
// every layer and KV head, and from them all bytes of a sequence.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "format/keys.h"
#include "format/packed_layout.h"
#include "format/rows/block_layout.h"
#include "kv/retention/retention_plan.h"

namespace kvlathe {

// When and how plain blocks are sealed (kv/seal/seal_schedule.h).
struct SealPlan {
  PackedFormat format;
  int prompt_run = 512;  // positions of a prompt that are sealed together; 0: the whole prompt
  int buffer = 64;       // positions that are sealed together while decoding
  int newest = 0;        // how many of the last entries are never sealed (NewestEntries)
  int most_newest = 0;   // where this is more, `newest` grows to it with the number of entries
  int power_loops = 3;   // of the low-rank solver
  double repaired_share =
      1;           // this share of the prompt, its newest runs, has the low-rank residual
  int window = 0;  // newest positions that are seen besides the sinks; 0: all
  // Whether runs may be sealed again with the bits of EntryClass::kPressed where memory is short
  // (SequenceCache::RunToPress).
  bool has_pressed_runs = false;

  friend bool operator==(const SealPlan&, const SealPlan&) = default;
};

struct CacheLayout {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  // First positions kept as plain rows: K [n_sink, head_dim], V [n_sink, sink_value_width()].
  int n_sink = 0;
  std::vector<BlockShape> shapes;  // [n_layers * n_kv_heads]
  // How many of the last positions each layer attends to (0: all), as the model or the SealPlan
  // says; [n_layers], or empty if no layer has a window. Blocks of a layer that no later position
  // can see are given back, and so are its sinks if the window is the model's.
  std::vector<int> windows;
  std::optional<SealPlan> seal;  // none: every block stays plain
  // What the codec of `seal` keeps of each head, [n_layers * n_kv_heads]; empty where it keeps
  // nothing.
  std::vector<HeadStorage> storages;
  // None: every entry stays. A layout has a retention plan only if no layer has a window. If it
  // also has a seal plan, that waits for the end of the prompt, and the retention plan has slack or
  // drops entries of the prompt only.
  std::optional<RetentionPlan> retention;
  // The form of keys in blocks. Where they turn when they are read, attention reads the positions
  // of entries if some are dropped.
  Keys keys;

  int window(int layer_idx) const { return windows.empty() ? 0 : windows[layer_idx]; }
  bool HasWindow() const { return !windows.empty(); }
  // Whether all layers have the same window, or none.
  bool HasOneWindow() const {
    return std::ranges::all_of(windows, [&](int w) { return w == window(0); });
  }
  // Whether positions are merged into entries, so that each head has a number of entries of its
  // own.
  bool MergesEntries() const { return retention.has_value() && retention->merge.has_value(); }
  // Whether entries are dropped by votes or places, where lengths and budgets say how many.
  bool DropsEntries() const {
    return retention.has_value() && !retention->merge.has_value() && !retention->sweep.has_value();
  }
  // Whether the model decides which entries are dropped.
  bool SweepsEntries() const { return retention.has_value() && retention->sweep.has_value(); }
  bool HasPrunePoints() const { return DropsEntries() || SweepsEntries(); }
  // Whether a prompt of this length is read again before its last token, by which it is chosen what
  // stays (RepeatPlan): not one of which everything stays.
  bool RepeatsPrompt(int64_t n_prompt) const;
  // Whether heads drop numbers of entries of their own where the prompt ends.
  bool DropsByHead() const { return DropsEntries() && retention->joins_heads; }
  // Whether each head has a number of entries of its own, which saved sequences tell.
  bool CountsByHead() const { return MergesEntries() || SweepsEntries() || DropsByHead(); }
  // Whether the model decides what merges or leaves, so that lengths alone do not say how many
  // entries there are.
  bool ModelDecidesEntries() const { return retention.has_value() && retention->ModelDecides(); }
  // Whether heads close their entries at positions of their own, or keep numbers of their own. Then
  // each head is sealed by itself, as if it were the only one of its layer.
  bool HasRunsOfHeads() const {
    return seal.has_value() && (ModelDecidesEntries() || DropsByHead());
  }
  // Whether each head keeps the Gram matrix of its queries until it has sealed a run.
  bool GathersQueries() const { return FactsOf(codec()).gathers_queries; }
  int n_heads_per_run() const { return HasRunsOfHeads() ? 1 : n_kv_heads; }
  // Whether the layer record, which the heads of a run share, is counted with this head.
  bool OwnsLayerRecord(int kv_head_idx) const { return kv_head_idx % n_heads_per_run() == 0; }
  // Whether queries still see the sinks when these have fallen out of the window.
  bool SparesSinks() const { return seal.has_value() && seal->window > 0; }
  // Whether entries are sorted into classes where the prompt ends.
  bool HasClasses() const { return FactsOf(codec()).has_classes; }
  // Whether runs may be sealed again in fewer bits.
  bool HasPressedRuns() const { return seal.has_value() && seal->has_pressed_runs; }
  // Whether no entry will be dropped any more, so that positions and votes are not needed: latents
  // need positions still, but under classes have them apart (SortedPositions).
  bool RetentionIsOver(int64_t n_tokens, int64_t n_prompt) const {
    return retention.has_value() && (!TurnWhenRead(keys) || HasClasses()) &&
           !retention->prunes_decode && n_tokens >= n_prompt;
  }

  // Whether blocks that are not sealed yet hold codes in place of rows.
  bool CodesOpenRows() const { return FactsOf(codec()).codes_open_rows; }

  // Whether plain blocks hold whole keys until the prompt ends (RetentionPlan::reads_whole_keys).
  bool ReadsWholeKeys() const { return DropsEntries() && retention->reads_whole_keys; }

  Codec codec() const { return seal.has_value() ? seal->format.codec : RowsCodec(); }
  const BlockShape& shape(int layer_idx, int kv_head_idx) const {
    return shapes[layer_idx * n_kv_heads + kv_head_idx];
  }
  HeadStorage storage(int layer_idx, int kv_head_idx) const {
    if (storages.empty()) return {};
    return storages[layer_idx * n_kv_heads + kv_head_idx];
  }
  // Adds a head whose rows are stored in `ranks`, as the codec stores it. head_dim and the seal
  // plan are set.
  void AddHead(const HeadRanks& ranks, DType row_type);
  // The shape of a plain block of this head, of [n_layers * n_kv_heads], that holds whole keys.
  BlockShape WholeKeyShape(size_t head_idx) const {
    return {head_dim, shapes[head_idx].rank_v, shapes[head_idx].row_type};
  }
  // The shape of the head's plain blocks once n_tokens positions are there.
  BlockShape PlainShapeAt(size_t head_idx, int64_t n_tokens, int64_t n_prompt) const {
    return ReadsWholeKeys() && n_tokens < n_prompt ? WholeKeyShape(head_idx) : shapes[head_idx];
  }
};

// Sets how many positions always stay where the model decides which leave (SweepPlan::window), and
// seals none of the others before they are settled.
void SetSweepWindow(int window, CacheLayout* layout);

// Bounds SealPlan::most_newest by the windows: layers that see few positions would never seal them
// if many are too new.
void CapNewest(CacheLayout* layout);

// Bytes of a 16-bit cache of n_tokens positions that are all attended to.
constexpr int64_t UncompressedBytes(int n_layers, int n_kv_heads, int head_dim, int64_t n_tokens) {
  return int64_t{2} * 2 * n_layers * n_kv_heads * head_dim * n_tokens;
}

// The size of every object of the cache is a multiple of this, and so is its address.
inline constexpr int64_t kObjectAlignment = 64;

// Bytes of the objects of one KV head: its sink rows (0 without sinks), one block that is not
// sealed yet, the table of n_blocks pointers.
int64_t SinkBytes(const CacheLayout& layout, const BlockShape& shape);
int64_t BlockObjectBytes(const CacheLayout& layout, const BlockShape& shape);
int64_t TableBytes(int64_t n_blocks);

// Bytes of a 16-bit cache of what the model attends to after n_tokens: in each layer as many
// positions as the model's own window has there. kv_fraction is in relation to this.
int64_t ReferenceBytes(const CacheLayout& layout, int64_t n_tokens);

// Bytes that the entries of n_blocks blocks take under retention for their positions, and for their
// votes if the method has votes.
int64_t EntryTableBytes(const CacheLayout& layout, int64_t n_blocks);

// Bytes of what a head of n_blocks keeps of its entries once n_tokens positions are there: that
// table, until retention is over; then SortedPositions where keys are latents, else nothing.
int64_t EntryBytesAt(const CacheLayout& layout, int64_t n_blocks, int64_t n_tokens,
                     int64_t n_prompt);

// Bytes of the newest entry of a head (OpenEntry) if entries are merged; 0 otherwise.
int64_t OpenEntryBytes(const CacheLayout& layout, const BlockShape& shape);

// Bytes of what a head keeps of decisions that are not settled (EvictionFlags); 0 where the model
// decides nothing of the kind.
int64_t EvictionFlagBytes(const CacheLayout& layout);

// Bytes of the sum of q q^T over the queries of a KV head, [head_dim, head_dim] F32 of which the
// upper triangle counts; 0 if queries are not gathered.
int64_t QueryGramBytes(const CacheLayout& layout);

// How many blocks n_tokens positions need in a head that keeps every position.
int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens);

// How many blocks a head has after a step that ended at n_tokens, sealed ones and those that fell
// out of the window included. Where the model decides what merges, it is what the head has if
// nothing merges.
int64_t HeldBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// How many of the oldest blocks of a layer no position from n_tokens on can see; 0 without a
// window.
int64_t BlocksOutOfWindow(const CacheLayout& layout, int layer_idx, int64_t n_tokens);

// Whether no position from n_tokens on can see the sinks of a layer. Never before all of them are
// written.
bool SinksOutOfWindow(const CacheLayout& layout, int layer_idx, int64_t n_tokens);

// Bytes by part, at the allocator.
struct KvBytes {
  int64_t blocks = 0;
  int64_t sinks = 0;
  int64_t run_records = 0;  // and before the first run the sums that its bases are found from
  int64_t layer_records = 0;
  int64_t tables = 0;
  int64_t entries = 0;  // positions and votes, open entries, or flags, under retention
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

// All of them together.
inline KvBytes SumOf(std::span<const KvBytes> parts) {
  KvBytes sum;
  for (const KvBytes& part : parts) sum.Add(part);
  return sum;
}

// The length of a prompt whose end is not known yet.
inline constexpr int64_t kEndlessPrompt = std::numeric_limits<int64_t>::max();

// What decides the bytes of a sequence.
struct SequenceLength {
  int64_t n_tokens = 0;
  int64_t n_step = 1;                 // positions of the last step; matters with a window only
  int64_t n_prompt = kEndlessPrompt;  // matters where blocks are sealed
  // Places of the runs that were sealed again with fewer bits (SealPlan::has_pressed_runs), rising.
  std::span<const int> pressed_runs = {};
};

// Bytes that the objects and tables of one sequence occupy after a step (and its sealing): the
// closed formula that the allocator's count must equal. Over all layers and KV heads, with n_blocks
// = ceil(max(0, n_tokens - n_sink) / kBlockSize), for every head
//   SinkBytes + plain blocks * BlockObjectBytes + TableBytes(n_blocks)
//   + the objects of its runs and their table, or QueryGramBytes() where it has none,
// less what fell out of the windows of their layers before the step. Under retention n_blocks is
// HeldBlocks(), and EntryBytesAt(n_blocks) is added; where entries are
// merged, OpenEntryBytes is added. Plain blocks have the shape PlainShapeAt(). Where the model
// decides what merges, the result holds if nothing merges; MergedParts counts heads whose lengths
// are known.
KvBytes SequenceParts(const CacheLayout& layout, const SequenceLength& length);
inline int64_t SequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_step = 1,
                             int64_t n_prompt = kEndlessPrompt) {
  return SequenceParts(layout, {n_tokens, n_step, n_prompt}).total();
}

// What a head holds where heads count for themselves (CacheLayout::CountsByHead). Blocks are
// counted only if HasRunsOfHeads().
struct MergedLength {
  int n_entries = 0;
  int n_prompt_blocks = 0;  // that were sealed where the prompt ended
  int n_sealed_blocks = 0;  // these, and those that were sealed since

  friend bool operator==(const MergedLength&, const MergedLength&) = default;
};

// Bytes by part for heads of these lengths, [n_layers * n_kv_heads], if the model decides what
// merges or nothing is sealed.
KvBytes MergedParts(const CacheLayout& layout, std::span<const MergedLength> lengths);

// An upper bound of the bytes that the sequence occupies at any time while it grows to n_tokens in
// steps of at most max_step positions, including what is set aside for sealing. Without a window
// and without sealing it is SequenceBytes.
int64_t PeakSequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                          int64_t n_prompt = kEndlessPrompt);

// The steps of a sequence from n_held positions, which it has, to n_tokens.
struct SequenceGrowth {
  int64_t n_held = 0;
  int64_t n_tokens = 0;
};

// The same bound for the steps that are still to come, at least for the last. It is lower than
// PeakSequenceBytes once the prompt has been read, where reading it took more than what is left of
// it: before it was sealed or pruned, or while its keys were whole.
int64_t PeakBytesOfGrowth(const CacheLayout& layout, SequenceGrowth growth, int64_t max_step,
                          int64_t n_prompt);

}  // namespace kvlathe
