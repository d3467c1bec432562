#include "kv/cache_layout.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "format/entry_table.h"
#include "format/eviction_flags.h"
#include "format/open_entry.h"
#include "kv/cache_objects.h"
#include "kv/seal/seal_schedule.h"
#include "machine/object_id.h"

namespace kvlathe {
namespace {

// What a run takes over all layers and heads.
struct RunBytes {
  int64_t per_block = 0;
  KvBytes records;
  int64_t room = 0;  // to seal it, with no block out of the window
};

// Runs of one length and kind take the same; the first may hold what the others use.
class RunSizes {
 public:
  explicit RunSizes(const CacheLayout& layout) : layout_(layout) {}

  const RunBytes& Of(const RunExtent& run) {
    const auto [found, is_new] =
        sizes_.try_emplace({run.n_blocks, run.is_prompt, run.is_repaired, run.first_block == 0,
                            run.entry_class, run.spans_classes});
    RunBytes& bytes = found->second;
    if (!is_new) return bytes;
    const auto add = [&](const CacheObjects& objects) {
      if (objects.part == ObjectPart::kSealedBlock) {
        bytes.per_block += objects.object_bytes;
      } else {
        AddObjects(objects, &bytes.records);
      }
    };
    for (int l = 0; l < layout_.n_layers; ++l) {
      for (int g = 0; g < layout_.n_kv_heads; ++g) {
        ForEachObjectOfRun(layout_, HeadInRunOf(layout_, l, g), run, add);
      }
    }
    bytes.room = SealRoomBytes(layout_, run, 0);
    return bytes;
  }

  // Of `runs`, without the first_held oldest blocks and without their tables.
  KvBytes Sum(const std::vector<RunExtent>& runs, int64_t first_held) {
    KvBytes bytes;
    for (const RunExtent& run : runs) {
      const int64_t end = run.first_block + run.n_blocks;
      if (end <= first_held) continue;
      const RunBytes& size = Of(run);
      bytes.blocks += (end - std::max(run.first_block, first_held)) * size.per_block;
      bytes.Add(size.records);
    }
    return bytes;
  }

 private:
  const CacheLayout& layout_;
  std::map<std::tuple<int64_t, bool, bool, bool, EntryClass, bool>, RunBytes> sizes_;
};

int64_t EndOf(const std::vector<RunExtent>& runs) {
  return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
}

// What every head holds beside its runs.
struct HeldBlockParts {
  int64_t n_blocks = 0;
  int64_t first_plain = 0;
  bool has_sinks = true;
  bool has_whole_keys = false;
};

// Sinks, block tables and the plain blocks; what belongs to runs, or stands in their place before
// the first, is left out.
KvBytes PartsOfBlocks(const CacheLayout& layout, const HeldBlockParts& held) {
  KvBytes bytes;
  for (size_t i = 0; i < layout.shapes.size(); ++i) {
    const HeadContents contents = {
        .plain = held.has_whole_keys ? layout.WholeKeyShape(i) : layout.shapes[i],
        .n_blocks = held.n_blocks,
        .n_gone = held.first_plain,
        .has_sinks = held.has_sinks,
        .entry_bytes = EntryTableBytes(layout, held.n_blocks)};
    ForEachObject(layout, HeadInRun(), contents, [&](const CacheObjects& objects) {
      if (objects.part != ObjectPart::kQueryGram) AddObjects(objects, &bytes);
    });
  }
  return bytes;
}

// Of all heads before their first run.
int64_t AllQueryGramBytes(const CacheLayout& layout) {
  return static_cast<int64_t>(layout.shapes.size()) * QueryGramBytes(layout);
}

// The least multiple of 16 that is no smaller a share of the dimensions.
int RankOfShare(int head_dim, double share) {
  const double exact = head_dim * share / 16;
  int n = static_cast<int>(exact);
  if (n < exact - 1e-9 || n == 0) ++n;
  return std::min(16 * n, head_dim);
}

// What each codec keeps of a head whose rows are stored in `ranks`.
std::monostate StorageOf(const RowsCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*head_dim*/) {
  return {};
}
std::monostate StorageOf(const UniformCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*dim*/) {
  return {};
}
std::monostate StorageOf(const BalancedCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*dim*/) {
  return {};
}
std::monostate StorageOf(const CodebookCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*dim*/) {
  return {};
}
std::monostate StorageOf(const TableCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*dim*/) {
  return {};
}
std::monostate StorageOf(const SphereCodec& /*codec*/, const HeadRanks& /*ranks*/, int /*dim*/) {
  return {};
}
HeadBits StorageOf(const SplitBitsCodec& /*codec*/, const HeadRanks& ranks, int /*head_dim*/) {
  return ranks.bits;
}
RotatedRanks StorageOf(const RotatedCodec& codec, const HeadRanks& ranks, int head_dim) {
  if (codec.kept_share == 0) return {ranks.rank_k, ranks.rank_v};
  const int common = RankOfShare(head_dim, codec.kept_share);
  return {common, common};
}

// Blocks of a head whose entries merge, the last n_new of n_tokens positions not merged yet.
int64_t MergedBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_new) {
  const int64_t n_seen = std::max<int64_t>(0, n_tokens - layout.n_sink);
  const int64_t n_before = std::max<int64_t>(0, n_seen - n_new);
  const int every = layout.MergesEntries() ? std::max(1, layout.retention->merge->every) : 1;
  return (PooledEntries(n_before, every) + n_seen - n_before + kBlockSize - 1) / kBlockSize;
}

// The layers that have the same window as a layout of their own, for each window that there is:
// what layers hold differs by their windows alone.
std::vector<CacheLayout> LayoutsByWindow(const CacheLayout& layout) {
  std::map<int, CacheLayout> by_window;
  for (int l = 0; l < layout.n_layers; ++l) {
    const auto [found, is_new] = by_window.try_emplace(layout.window(l), layout);
    CacheLayout& part = found->second;
    if (is_new) {
      part.n_layers = 0;
      part.shapes.clear();
      part.storages.clear();
      part.windows.clear();
    }
    ++part.n_layers;
    if (layout.window(l) > 0) part.windows.push_back(layout.window(l));
    const auto first = layout.shapes.begin() + int64_t{l} * layout.n_kv_heads;
    part.shapes.insert(part.shapes.end(), first, first + layout.n_kv_heads);
    for (int g = 0; g < layout.n_kv_heads && !layout.storages.empty(); ++g) {
      part.storages.push_back(layout.storage(l, g));
    }
  }
  std::vector<CacheLayout> parts;
  for (auto& [window, part] : by_window) parts.push_back(std::move(part));
  return parts;
}

// Of a layout with one window or none, where sinks that no position from released_at on sees have
// been given back.
bool HoldsSinks(const CacheLayout& layout, int64_t released_at) {
  return !SinksOutOfWindow(layout, 0, released_at);
}

// The most plain blocks that a step of at most max_step positions finds in the window of all
// layers, at the worst place relative to the blocks.
int64_t MostBlocksInWindow(const CacheLayout& layout, int64_t max_step) {
  return (layout.window(0) + max_step - 1 + kBlockSize - 2) / kBlockSize + 1;
}

// Of a layout with one window or none. Most is held when a step has filled its blocks and the run
// that ends there is not sealed yet; or, where a window leaves blocks of a run behind before it is
// sealed, at some step before.
int64_t PeakWithSealing(const CacheLayout& layout, const SequenceGrowth& growth, int64_t max_step,
                        int64_t n_prompt) {
  const int64_t n_tokens = growth.n_tokens;
  RunSizes sizes(layout);
  std::vector<RunExtent> runs = RunsOf(layout, growth.n_held, n_prompt);
  int64_t peak_bytes = 0;
  int64_t sealed_bytes = sizes.Sum(runs, 0).total();  // without a window a running sum
  for (int64_t before = growth.n_held; before < n_tokens;) {
    const int64_t at = std::min(n_tokens, NextSealPoint(layout, before, n_prompt));
    const int64_t n_sealed = EndOf(runs);
    const RunExtent run = RunEndingAt(layout, at, n_prompt, n_sealed);
    int64_t n_blocks =
        layout.MergesEntries() ? MergedBlocks(layout, at, max_step) : BlocksFor(layout, at);
    if (layout.HasRunsOfHeads() && before >= n_prompt) {
      // A head that merged has sealed no more than one that did not, but its entries may have just
      // failed to fill a buffer where it last could have sealed them.
      const int64_t most_open = 2 * layout.seal->buffer + layout.seal->newest;
      n_blocks = std::max(n_blocks, n_sealed + RoundUp(most_open, kBlockSize) / kBlockSize);
    }
    const int64_t released_at = std::max(before, at - max_step);
    const int64_t first_held = BlocksOutOfWindow(layout, 0, released_at);
    if (layout.window(0) > 0) {
      sealed_bytes = sizes.Sum(runs, BlocksOutOfWindow(layout, 0, before)).total();
      const int64_t n_plain = std::min(n_blocks - n_sealed, MostBlocksInWindow(layout, max_step));
      const KvBytes plain = PartsOfBlocks(layout, {.n_blocks = n_blocks,
                                                   .first_plain = n_blocks - n_plain,
                                                   .has_sinks = HoldsSinks(layout, before)});
      peak_bytes = std::max(peak_bytes, sealed_bytes + plain.total());
      sealed_bytes = sizes.Sum(runs, first_held).total();
    }
    const KvBytes plain = PartsOfBlocks(layout, {.n_blocks = n_blocks,
                                                 .first_plain = std::max(n_sealed, first_held),
                                                 .has_sinks = HoldsSinks(layout, released_at)});
    int64_t n_bytes = sealed_bytes + plain.total();
    if (runs.empty()) n_bytes += AllQueryGramBytes(layout);
    if (run.n_blocks > 0) {
      n_bytes +=
          first_held <= n_sealed ? sizes.Of(run).room : SealRoomBytes(layout, run, 0, released_at);
      sealed_bytes += sizes.Sum({run}, 0).total();
      runs.push_back(run);
    }
    peak_bytes = std::max(peak_bytes, n_bytes);
    before = at;
  }
  const int64_t n_heads = static_cast<int64_t>(layout.shapes.size());
  return peak_bytes + n_heads * RunTableBytes(static_cast<int64_t>(runs.size()));
}

// The most that the prompt holds at a time, whole keys until its end.
int64_t PeakInPrompt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  const int64_t n_read = std::min(n_tokens, n_prompt);
  const RetainedLength length = RetainedAt(*layout.retention, {layout.n_sink, n_prompt}, n_read);
  return PartsOfBlocks(layout,
                       {.n_blocks = length.max_blocks, .has_whole_keys = layout.ReadsWholeKeys()})
      .total();
}

// That and the room to seal what stays of it; then what every step finds and the room for what it
// ends.
int64_t PeakWithRetention(const CacheLayout& layout, const SequenceGrowth& growth,
                          int64_t n_prompt) {
  const int64_t n_tokens = growth.n_tokens;
  const PromptPlace place = {layout.n_sink, n_prompt};
  const auto n_heads = static_cast<int64_t>(layout.shapes.size());
  int64_t peak_bytes = 0;
  if (growth.n_held < n_prompt) {
    peak_bytes = PeakInPrompt(layout, n_tokens, n_prompt);
    if (n_tokens < n_prompt) return peak_bytes;
    const RunExtent of_prompt = RunEndingAt(layout, n_prompt, n_prompt, 0);
    if (of_prompt.n_blocks > 0) {
      const int64_t n_runs = std::ssize(RunsByClass(of_prompt));
      peak_bytes += SealRoomBytes(layout, of_prompt, 0) + n_heads * RunTableBytes(n_runs);
    }
  }
  RunSizes sizes(layout);
  for (int64_t before = std::max(n_prompt, growth.n_held); before < n_tokens;) {
    const int64_t at = std::min({n_tokens, NextSealPoint(layout, before, n_prompt),
                                 NextPrunePoint(*layout.retention, place, before)});
    const std::vector<RunExtent> runs = RunsOf(layout, before, n_prompt);
    const int64_t n_entries = RetainedAt(*layout.retention, place, before).n_entries + at - before;
    int64_t n_bytes = sizes.Sum(runs, 0).total();
    const int64_t n_held = BlocksFor(layout, layout.n_sink + n_entries);
    KvBytes parts = PartsOfBlocks(layout, {.n_blocks = n_held, .first_plain = EndOf(runs)});
    parts.entries = n_heads * EntryBytesAt(layout, n_held, before, n_prompt);
    n_bytes += parts.total();
    n_bytes += n_heads * RunTableBytes(std::ssize(runs) + 1);
    const RunExtent run = RunEndingAt(layout, at, n_prompt, EndOf(runs));
    if (SealsAgainAt(layout, at, n_prompt)) {
      n_bytes += ReopenRoomBytes(layout, at, n_prompt, 0);
    } else if (run.n_blocks > 0) {
      n_bytes += sizes.Of(run).room;
    }
    peak_bytes = std::max(peak_bytes, n_bytes);
    before = at;
  }
  return peak_bytes;
}

}  // namespace

void SetSweepWindow(int window, CacheLayout* layout) {
  layout->retention->sweep->window = window;
  if (!layout->seal.has_value()) return;
  // What is sealed at a prune point is older than the window (RunOfHeadAt leaves out one more).
  SealPlan& seal = *layout->seal;
  seal.newest = std::max(seal.newest, window - 1);
  seal.most_newest = std::max(seal.most_newest, seal.newest);
}

void CapNewest(CacheLayout* layout) {
  for (const int window : layout->windows) {
    if (window == 0 || !layout->seal.has_value()) continue;
    layout->seal->most_newest = std::min(layout->seal->most_newest, window / 16);
  }
}

void CacheLayout::AddHead(const HeadRanks& ranks, DType row_type) {
  const bool has_whole_rows = FactsOf(codec()).brings_bases;
  shapes.push_back(has_whole_rows ? BlockShape{head_dim, head_dim, row_type}
                                  : BlockShape{ranks.rank_k, ranks.rank_v, row_type});
  shapes.back().has_one_side = FactsOf(codec()).has_one_side;
  const HeadStorage storage = std::visit(
      [&](const auto& of) -> HeadStorage { return StorageOf(of, ranks, head_dim); }, codec());
  if (!std::holds_alternative<std::monostate>(storage)) storages.push_back(storage);
}

int64_t SinkBytes(const CacheLayout& layout, const BlockShape& shape) {
  return RoundUp(int64_t{layout.n_sink} * (layout.head_dim + shape.sink_value_width()) *
                     SizeOf(shape.row_type),
                 kObjectAlignment);
}

int64_t BlockObjectBytes(const CacheLayout& layout, const BlockShape& shape) {
  return RoundUp(OpenBlockBytes(layout.codec(), shape), kObjectAlignment);
}

int64_t TableBytes(int64_t n_blocks) {
  return RoundUp(n_blocks * static_cast<int64_t>(sizeof(ObjectId)), kObjectAlignment);
}

int64_t EntryTableBytes(const CacheLayout& layout, int64_t n_blocks) {
  if (!layout.DropsEntries()) return 0;
  return n_blocks * EntryTable::BlockBytes(layout.retention->HasVotes());
}

int64_t EntryBytesAt(const CacheLayout& layout, int64_t n_blocks, int64_t n_tokens,
                     int64_t n_prompt) {
  if (!layout.RetentionIsOver(n_tokens, n_prompt)) return EntryTableBytes(layout, n_blocks);
  if (!TurnWhenRead(layout.keys)) return 0;
  return SortedBlocks(layout, n_prompt) *
         SortedPositions::BlockBytes(SortedPositions::IsWide(n_prompt));
}

int64_t OpenEntryBytes(const CacheLayout& layout, const BlockShape& shape) {
  if (!layout.MergesEntries()) return 0;
  return RoundUp(OpenEntry::Bytes(*layout.retention->merge, layout.head_dim, shape.rank_v),
                 kObjectAlignment);
}

int64_t EvictionFlagBytes(const CacheLayout& layout) {
  return layout.SweepsEntries() ? EvictionFlags::Bytes(MostUnsettled(*layout.retention)) : 0;
}

int64_t QueryGramBytes(const CacheLayout& layout) {
  if (!layout.GathersQueries()) return 0;
  const int64_t d = layout.head_dim;
  return RoundUp(d * d * static_cast<int64_t>(sizeof(float)), kObjectAlignment);
}

bool CacheLayout::RepeatsPrompt(int64_t n_prompt) const {
  if (!DropsEntries() || !retention->repeats_prompt()) return false;
  if (n_prompt < 2 || n_prompt == kEndlessPrompt) return false;
  return HasClasses() || DropsOfPrompt(*retention, {n_sink, n_prompt});
}

int64_t BlocksFor(const CacheLayout& layout, int64_t n_tokens) {
  return (std::max<int64_t>(0, n_tokens - layout.n_sink) + kBlockSize - 1) / kBlockSize;
}

int64_t HeldBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (layout.MergesEntries() || layout.SweepsEntries()) return MergedBlocks(layout, n_tokens, 0);
  if (!layout.retention.has_value()) return BlocksFor(layout, n_tokens);
  return RetainedAt(*layout.retention, {layout.n_sink, n_prompt}, n_tokens).n_blocks;
}

int64_t BlocksOutOfWindow(const CacheLayout& layout, int layer_idx, int64_t n_tokens) {
  const int window = layout.window(layer_idx);
  if (window == 0) return 0;
  // Position n_tokens sees those after n_tokens - window.
  return std::max<int64_t>(0, n_tokens + 1 - window - layout.n_sink) / kBlockSize;
}

bool SinksOutOfWindow(const CacheLayout& layout, int layer_idx, int64_t n_tokens) {
  const int window = layout.window(layer_idx);
  if (window == 0 || layout.SparesSinks()) return false;
  return n_tokens + 1 - window >= layout.n_sink;
}

int64_t ReferenceBytes(const CacheLayout& layout, int64_t n_tokens) {
  int64_t n_seen = 0;  // summed over the layers
  for (int l = 0; l < layout.n_layers; ++l) {
    const bool sees_all = layout.window(l) == 0 || layout.SparesSinks();
    n_seen += sees_all ? n_tokens : std::min<int64_t>(n_tokens, layout.window(l));
  }
  return UncompressedBytes(1, layout.n_kv_heads, layout.head_dim, n_seen);
}

KvBytes SequenceParts(const CacheLayout& layout, const SequenceLength& length) {
  if (length.n_tokens <= 0) return {};
  if (!layout.HasOneWindow()) {
    KvBytes sum;
    for (const CacheLayout& part : LayoutsByWindow(layout)) sum.Add(SequenceParts(part, length));
    return sum;
  }
  const int64_t released_at = length.n_tokens - length.n_step;
  const int64_t first_held = BlocksOutOfWindow(layout, 0, released_at);
  std::vector<RunExtent> runs = RunsOf(layout, length.n_tokens, length.n_prompt);
  MarkPressed(length.pressed_runs, &runs);
  const int64_t n_blocks = HeldBlocks(layout, length.n_tokens, length.n_prompt);
  KvBytes bytes = PartsOfBlocks(
      layout, {.n_blocks = n_blocks,
               .first_plain = std::max(EndOf(runs), first_held),
               .has_sinks = HoldsSinks(layout, released_at),
               .has_whole_keys = layout.ReadsWholeKeys() && length.n_tokens < length.n_prompt});
  if (layout.DropsEntries()) {
    bytes.entries = static_cast<int64_t>(layout.shapes.size()) *
                    EntryBytesAt(layout, n_blocks, length.n_tokens, length.n_prompt);
  }
  if (runs.empty()) {
    bytes.run_records = AllQueryGramBytes(layout);
    return bytes;
  }
  const KvBytes sealed = RunSizes(layout).Sum(runs, first_held);
  bytes.blocks += sealed.blocks;
  bytes.run_records = sealed.run_records;
  bytes.layer_records = sealed.layer_records;
  bytes.tables +=
      static_cast<int64_t>(layout.shapes.size()) * RunTableBytes(static_cast<int64_t>(runs.size()));
  return bytes;
}

KvBytes MergedParts(const CacheLayout& layout, std::span<const MergedLength> lengths) {
  KvBytes bytes;
  ForEachObject(layout, SequenceContents(layout, {}, lengths),
                [&](int /*layer_idx*/, int /*kv_head_idx*/, const CacheObjects& objects) {
                  AddObjects(objects, &bytes);
                });
  return bytes;
}

int64_t PeakBytesOfGrowth(const CacheLayout& layout, SequenceGrowth growth, int64_t max_step,
                          int64_t n_prompt) {
  const int64_t n_tokens = growth.n_tokens;
  if (n_tokens <= 0) return 0;
  growth.n_held = std::min(growth.n_held, n_tokens - 1);
  if (!layout.HasOneWindow()) {
    int64_t n_bytes = 0;
    for (const CacheLayout& part : LayoutsByWindow(layout)) {
      n_bytes += PeakBytesOfGrowth(part, growth, max_step, n_prompt);
    }
    return n_bytes;
  }
  if (layout.seal.has_value()) {
    return layout.DropsEntries() ? PeakWithRetention(layout, growth, n_prompt)
                                 : PeakWithSealing(layout, growth, max_step, n_prompt);
  }
  if (layout.MergesEntries() || layout.SweepsEntries()) {
    return PartsOfBlocks(layout, {.n_blocks = MergedBlocks(layout, n_tokens, max_step)}).total();
  }
  if (layout.retention.has_value()) {
    const PromptPlace place = {layout.n_sink, n_prompt};
    KvBytes bytes = PartsOfBlocks(
        layout, {.n_blocks = MostBlocksBetween(*layout.retention, place, growth.n_held, n_tokens)});
    if (layout.RetentionIsOver(growth.n_held, n_prompt)) bytes.entries = 0;
    if (growth.n_held >= n_prompt) return bytes.total();
    return std::max(PeakInPrompt(layout, n_tokens, n_prompt), bytes.total());
  }
  const int64_t n_blocks = BlocksFor(layout, n_tokens);
  if (layout.window(0) == 0) return PartsOfBlocks(layout, {.n_blocks = n_blocks}).total();
  const int64_t n_held = std::min(n_blocks, MostBlocksInWindow(layout, max_step));
  return PartsOfBlocks(layout, {.n_blocks = n_blocks,
                                .first_plain = n_blocks - n_held,
                                .has_sinks = HoldsSinks(layout, growth.n_held)})
      .total();
}

int64_t PeakSequenceBytes(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                          int64_t n_prompt) {
  return PeakBytesOfGrowth(layout, {0, n_tokens}, max_step, n_prompt);
}

}  // namespace kvlathe
