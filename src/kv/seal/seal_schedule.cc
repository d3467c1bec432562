#include "kv/seal/seal_schedule.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "kv/cache_objects.h"
#include "machine/sealed_runs.h"

namespace kvlathe {
namespace {

// Positions that an entry is made of.
int64_t EntrySpan(const CacheLayout& layout) {
  return layout.MergesEntries() ? layout.retention->merge->every : 1;
}

// What a head holds that will not change or be dropped any more.
int64_t EntriesOf(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (layout.HasRunsOfHeads() && layout.ModelDecidesEntries()) {
    // The next may join the newest, or let it go.
    return std::max<int64_t>(0, n_tokens - layout.n_sink - 1);
  }
  if (layout.MergesEntries()) {
    return std::max<int64_t>(0, n_tokens - layout.n_sink) / EntrySpan(layout);
  }
  if (layout.retention.has_value()) {
    return RetainedAt(*layout.retention, {layout.n_sink, n_prompt}, n_tokens).n_entries;
  }
  return std::max<int64_t>(0, n_tokens - layout.n_sink);
}

// Those of them that are old enough to be sealed.
int64_t SealableEntries(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  const int64_t n_entries = EntriesOf(layout, n_tokens, n_prompt);
  return std::max<int64_t>(0, n_entries - NewestEntries(*layout.seal, n_entries));
}

// The fewest entries of which n_old are old enough.
int64_t EntriesWithOld(const CacheLayout& layout, int64_t n_old) {
  int64_t n_entries = n_old, before = -1;
  while (n_entries != before) {
    before = std::exchange(n_entries, n_old + NewestEntries(*layout.seal, n_entries));
  }
  return n_entries;
}

// Where the prompt ended, or sealed entries were dropped last: the full blocks of what was there
// became one run.
int64_t LastFreshStart(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (!layout.DropsEntries() || n_tokens < n_prompt) return n_prompt;
  return LastPrunePoint(*layout.retention, {layout.n_sink, n_prompt}, n_tokens);
}

// Blocks that are sealed at such a place.
int64_t BlocksOfStart(const CacheLayout& layout, int64_t start, int64_t n_prompt) {
  return SealableEntries(layout, start, n_prompt) / kBlockSize;
}

// Whether the run has its residual: of the prompt, or of what was left at `start`, the newest share
// has, to the nearest run.
bool IsRepaired(const CacheLayout& layout, const RunExtent& run, int64_t start, int64_t n_prompt) {
  const double share = layout.seal->repaired_share;
  if (!run.is_prompt || share == 1) return true;
  const double middle =
      kBlockSize * (static_cast<double>(run.first_block) + static_cast<double>(run.n_blocks) / 2);
  return middle > (1 - share) * static_cast<double>(EntriesOf(layout, start, n_prompt));
}

// Of those that the prompt's end seals.
bool SpansClasses(const CacheLayout& layout, const RunExtent& run) {
  return layout.HasClasses() && run.is_prompt && run.n_blocks > 0;
}

// Bytes of a run of one head, with what its layer shares if they count with it.
int64_t RunBytesOfHead(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                       const RunExtent& run) {
  if (run.n_blocks == 0) return 0;
  int64_t n_bytes = 0;
  const HeadInRun head = HeadInRunOf(layout, layer_idx, kv_head_idx);
  for (const RunExtent& part : RunsByClass(run)) {
    ForEachObjectOfRun(layout, head, part,
                       [&](const CacheObjects& objects) { n_bytes += objects.total_bytes(); });
  }
  return n_bytes;
}

// Of one layer.
int64_t RunBytesOfLayer(const CacheLayout& layout, int layer_idx, const RunExtent& run) {
  int64_t n_bytes = 0;
  for (int g = 0; g < layout.n_kv_heads; ++g) n_bytes += RunBytesOfHead(layout, layer_idx, g, run);
  return n_bytes;
}

// The first of_prompt blocks in runs of prompt_step, the others up to n_sealed in runs of step.
std::vector<RunExtent> ListRuns(int64_t of_prompt, int64_t prompt_step, int64_t n_sealed,
                                int64_t step) {
  std::vector<RunExtent> runs;
  for (int64_t block = 0; block < n_sealed;) {
    const bool is_prompt = block < of_prompt;
    const int64_t n_blocks = is_prompt ? std::min(prompt_step, of_prompt - block) : step;
    runs.push_back({block, n_blocks, is_prompt});
    block += n_blocks;
  }
  return runs;
}

}  // namespace

int64_t NewestEntries(const SealPlan& plan, int64_t n_entries) {
  constexpr int64_t kFirst = 2048, kLess = 4;
  const int64_t grown =
      std::min(n_entries, kFirst) / 32 + std::max<int64_t>(0, n_entries - kFirst) / 16 - kLess;
  return std::max<int64_t>(plan.newest, std::min<int64_t>(plan.most_newest, grown));
}

std::vector<RunExtent> RunsByClass(const RunExtent& run) {
  if (!run.spans_classes) return {run};
  const int64_t quarter = (run.n_blocks + 2) / 4;  // to the nearest
  std::vector<RunExtent> runs;
  int64_t first_block = run.first_block;
  for (const auto& [entry_class, n_blocks] :
       {std::pair(EntryClass::kMost, quarter),
        std::pair(EntryClass::kMiddle, run.n_blocks - 2 * quarter),
        std::pair(EntryClass::kLeast, quarter)}) {
    if (n_blocks == 0) continue;
    RunExtent& part = runs.emplace_back(run);
    part.first_block = std::exchange(first_block, first_block + n_blocks);
    part.n_blocks = n_blocks;
    part.entry_class = entry_class;
    part.spans_classes = false;
  }
  return runs;
}

void MarkPressed(std::span<const int> places, std::vector<RunExtent>* runs) {
  for (const int place : places) (*runs)[place].entry_class = EntryClass::kPressed;
}

bool StartsAfreshAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  return layout.seal.has_value() && n_tokens > n_prompt &&
         LastFreshStart(layout, n_tokens, n_prompt) == n_tokens;
}

bool SealsAgainAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  return StartsAfreshAt(layout, n_tokens, n_prompt) &&
         SealedBlocks(layout, n_tokens - 1, n_prompt) > 0;
}

int64_t SealedBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (!layout.seal.has_value()) return 0;
  const int64_t last =
      layout.HasRunsOfHeads() ? LastSealPoint(layout, n_tokens, n_prompt) : n_tokens;
  const int64_t n_entries = SealableEntries(layout, last, n_prompt);
  const int64_t run = layout.seal->prompt_run;
  if (n_tokens < n_prompt) return run == 0 ? 0 : n_entries / run * (run / kBlockSize);
  const int64_t at_start =
      BlocksOfStart(layout, LastFreshStart(layout, n_tokens, n_prompt), n_prompt);
  const int64_t step = layout.seal->buffer / kBlockSize;
  return at_start + (n_entries / kBlockSize - at_start) / step * step;
}

int64_t SortedBlocks(const CacheLayout& layout, int64_t n_prompt) {
  return layout.HasClasses() ? SealedBlocks(layout, n_prompt, n_prompt) : 0;
}

int64_t NextSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (!layout.seal.has_value()) return std::numeric_limits<int64_t>::max();
  if (layout.HasRunsOfHeads() && n_tokens >= n_prompt) {
    return LastSealPoint(layout, n_tokens, n_prompt) + layout.seal->buffer;
  }
  if (n_tokens < n_prompt) {
    const int64_t run = layout.seal->prompt_run;
    if (run == 0) return n_prompt;
    const int64_t n_runs = SealableEntries(layout, n_tokens, n_prompt) / run;
    const int64_t end = EntriesWithOld(layout, (n_runs + 1) * run);
    return std::min(n_prompt, layout.n_sink + end * EntrySpan(layout));
  }
  const int64_t n_old = SealedBlocks(layout, n_tokens, n_prompt) * kBlockSize + layout.seal->buffer;
  const int64_t end = EntriesWithOld(layout, n_old);
  if (!layout.DropsEntries()) return layout.n_sink + end * EntrySpan(layout);
  return n_tokens + end - EntriesOf(layout, n_tokens, n_prompt);
}

RunExtent RunEndingAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_sealed) {
  const bool is_fresh = StartsAfreshAt(layout, n_tokens, n_prompt);
  const int64_t first_block = is_fresh ? 0 : n_sealed;
  RunExtent run = {.first_block = first_block,
                   .n_blocks = SealedBlocks(layout, n_tokens, n_prompt) - first_block,
                   .is_prompt = is_fresh || n_tokens <= n_prompt};
  if (run.n_blocks > 0) {
    run.is_repaired = IsRepaired(layout, run, is_fresh ? n_tokens : n_prompt, n_prompt);
  }
  run.spans_classes = SpansClasses(layout, run);
  return run;
}

std::vector<RunExtent> RunsOf(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  const int64_t n_sealed = SealedBlocks(layout, n_tokens, n_prompt);
  if (n_sealed == 0) return {};
  const int64_t start = LastFreshStart(layout, n_tokens, n_prompt);
  const int64_t of_prompt =
      std::min(n_sealed, BlocksOfStart(layout, std::min(n_tokens, start), n_prompt));
  const int64_t prompt_step =
      layout.seal->prompt_run == 0 ? of_prompt : layout.seal->prompt_run / kBlockSize;
  std::vector<RunExtent> runs =
      ListRuns(of_prompt, prompt_step, n_sealed, layout.seal->buffer / kBlockSize);
  for (RunExtent& run : runs) run.is_repaired = IsRepaired(layout, run, start, n_prompt);
  if (runs.empty() || !SpansClasses(layout, runs.front())) return runs;
  RunExtent of_prompt_end = runs.front();
  of_prompt_end.spans_classes = true;
  const std::vector<RunExtent> by_class = RunsByClass(of_prompt_end);
  runs.erase(runs.begin());
  runs.insert(runs.begin(), by_class.begin(), by_class.end());
  return runs;
}

int64_t LastSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (n_tokens < n_prompt) return 0;
  return n_tokens - (n_tokens - n_prompt) % layout.seal->buffer;
}

RunExtent RunOfHeadAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_entries, int64_t n_sealed_blocks) {
  if (LastSealPoint(layout, n_tokens, n_prompt) != n_tokens) return {};
  const int64_t n_old = std::max<int64_t>(0, n_entries - 1 - layout.seal->newest);
  const int64_t n_full = n_old / kBlockSize - n_sealed_blocks;
  if (n_tokens == n_prompt) return {n_sealed_blocks, n_full, true};
  // One run is all that a head can have closed since it last sealed what it could.
  const int64_t step = layout.seal->buffer / kBlockSize;
  return {n_sealed_blocks, n_full >= step ? step : 0, false};
}

std::vector<RunExtent> RunsOf(const CacheLayout& layout, const MergedLength& length) {
  return ListRuns(length.n_prompt_blocks, length.n_prompt_blocks, length.n_sealed_blocks,
                  layout.seal->buffer / kBlockSize);
}

PackedShape PackedShapeOf(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                          const RunExtent& run) {
  return PackedShapeOf(layout, HeadInRunOf(layout, layer_idx, kv_head_idx), run);
}

PackedShape PackedShapeOf(const CacheLayout& layout, const HeadInRun& head, const RunExtent& run) {
  return MakePackedShape(layout.seal->format, head.shape, head.storage,
                         {.n_kv_heads = layout.n_heads_per_run(),
                          .layer_rank_v = head.layer_rank_v,
                          .n_blocks = static_cast<int>(run.n_blocks),
                          .is_prompt = run.is_prompt,
                          .is_repaired = run.is_repaired,
                          .entry_class = run.entry_class,
                          .has_rotations = run.first_block == 0});
}

int64_t PackedBlockObjectBytes(const PackedShape& shape) {
  return RoundUp(PackedBlockBytes(shape), kObjectAlignment);
}

int64_t BytesPressedOff(const CacheLayout& layout, const HeadInRun& head, const RunExtent& run) {
  RunExtent pressed = run;
  pressed.entry_class = EntryClass::kPressed;
  return PackedBlockObjectBytes(PackedShapeOf(layout, head, run)) -
         PackedBlockObjectBytes(PackedShapeOf(layout, head, pressed));
}

int64_t RunRecordObjectBytes(const PackedShape& shape) {
  return RoundUp(RunRecordBytes(shape), kObjectAlignment);
}

int64_t LayerRecordObjectBytes(const PackedShape& shape) {
  return RoundUp(LayerRecordBytes(shape), kObjectAlignment);
}

int64_t RunTableBytes(int64_t n_runs) {
  return RoundUp(n_runs * static_cast<int64_t>(sizeof(SealedRun)), kObjectAlignment);
}

int64_t SealRoomBytes(const CacheLayout& layout, std::span<const RunExtent> runs, int first_layer,
                      int64_t released_at) {
  int64_t most = 0, growth = 0;
  for (int l = first_layer; l < layout.n_layers; ++l) {
    const int64_t n_released = BlocksOutOfWindow(layout, l, released_at);
    int64_t layer_bytes = 0;
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      const RunExtent& run = runs[l * layout.n_kv_heads + g];
      const int64_t packed_bytes = RunBytesOfHead(layout, l, g, run);
      layer_bytes += packed_bytes;
      const int64_t n_gone = std::clamp<int64_t>(n_released - run.first_block, 0, run.n_blocks);
      // Not of the layer: of heads that may seal one can grow while another has nothing to seal.
      growth += std::max<int64_t>(
          0, packed_bytes - (run.n_blocks - n_gone) * BlockObjectBytes(layout, layout.shape(l, g)));
    }
    most = std::max(most, layer_bytes);
  }
  return most + growth;
}

int64_t RunObjectBytes(const CacheLayout& layout, std::span<const RunExtent> runs,
                       int first_layer) {
  int64_t n_bytes = 0;
  for (int64_t i = int64_t{first_layer} * layout.n_kv_heads; i < std::ssize(runs); ++i) {
    const int layer_idx = static_cast<int>(i) / layout.n_kv_heads;
    n_bytes += RunBytesOfHead(layout, layer_idx, static_cast<int>(i) % layout.n_kv_heads, runs[i]);
  }
  return n_bytes;
}

int64_t ReopenRoomBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                        int first_layer) {
  const std::vector<RunExtent> before = RunsOf(layout, n_tokens - 1, n_prompt);
  const RunExtent after = RunEndingAt(layout, n_tokens, n_prompt, 0);
  const int64_t n_kept = HeldBlocks(layout, n_tokens, n_prompt);
  int64_t most = 0, growth = 0;
  for (int l = first_layer; l < layout.n_layers; ++l) {
    int64_t freed_bytes = 0, plain_bytes = 0;
    for (const RunExtent& run : before) freed_bytes += RunBytesOfLayer(layout, l, run);
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      plain_bytes += n_kept * BlockObjectBytes(layout, layout.shape(l, g));
    }
    const int64_t packed_bytes = after.n_blocks == 0 ? 0 : RunBytesOfLayer(layout, l, after);
    most = std::max(most, plain_bytes + packed_bytes);
    growth += std::max<int64_t>(0, packed_bytes - freed_bytes);
  }
  return most + growth;
}

}  // namespace kvlathe
