#include "kv/blocks/sequence_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/attend/coded_rows.h"
#include "kv/retention/merge.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

using RowSink = std::function<Status(std::span<const std::byte>)>;

// The sealed runs of a head, and those of them of which blocks are held in its layer.
class HeldRuns {
 public:
  // `runs`, oldest first, are those of all positions.
  explicit HeldRuns(std::vector<RunExtent> runs) : runs_(std::move(runs)) {}

  // Blocks that the last position does not see in this layer are not held.
  void LookAtLayer(const CacheLayout& layout, int layer_idx, int n_tokens) {
    n_unseen_ = BlocksOutOfWindow(layout, layer_idx, n_tokens - 1);
    const auto held = std::ranges::partition_point(
        runs_, [&](const RunExtent& run) { return run.first_block + run.n_blocks <= n_unseen_; });
    n_gone_ = held - runs_.begin();
  }

  std::span<const RunExtent> runs() const {
    return std::span(runs_).subspan(static_cast<size_t>(n_gone_));
  }
  int64_t n_gone() const { return n_gone_; }  // runs of which nothing is held
  int64_t n_sealed() const {                  // blocks, from the oldest
    return runs_.empty() ? 0 : runs_.back().first_block + runs_.back().n_blocks;
  }
  int64_t n_unseen() const { return n_unseen_; }

 private:
  std::vector<RunExtent> runs_;
  int64_t n_unseen_ = 0, n_gone_ = 0;
};

HeldRuns HeldRunsOf(const CacheLayout& layout, const SequenceCache& cache, int layer_idx,
                    int kv_head_idx) {
  std::vector<RunExtent> runs;
  for (const PackedRun& run : cache.runs(layer_idx, kv_head_idx)) {
    runs.push_back({run.first_block, run.n_blocks, run.is_prompt, run.is_repaired});
  }
  HeldRuns held(std::move(runs));
  held.LookAtLayer(layout, layer_idx, cache.n_tokens());
  return held;
}

// Sum of rank_v over the heads that share a layer record with the first of them; safe for any
// layout.
int SharedRankV(const CacheLayout& layout, size_t first_head) {
  int64_t sum = 0;
  for (int h = 0; h < layout.n_heads_per_run(); ++h) sum += layout.shapes[first_head + h].rank_v;
  return static_cast<int>(std::min<int64_t>(sum, std::numeric_limits<int>::max()));
}

// A block of which n_filled entries are written, the others made zero.
void ClearUnfilled(const BlockShape& shape, int n_filled, std::byte* block) {
  const int64_t element_bytes = shape.element_bytes();
  const auto clear = [&](std::byte* base, int64_t offset) {
    std::memset(base + offset * element_bytes, 0, static_cast<size_t>(element_bytes));
  };
  const bool is_coded = shape.has_coded_rows;
  for (int token = n_filled; token < kBlockSize; ++token) {
    for (int r = 0; r < shape.rank_k; ++r) {
      clear(block, is_coded ? CodedKeyOffset(token, r) : KeyOffset(token, r));
    }
    for (int r = 0; r < shape.rank_v; ++r) {
      clear(block + KeyBytes(shape),
            is_coded ? CodedValueOffset(shape.rank_v, token, r) : ValueOffset(shape, token, r));
    }
  }
  const int64_t n_bytes = BlockBytes(shape);
  std::memset(block + n_bytes, 0, static_cast<size_t>(BlockObjectBytes(shape) - n_bytes));
}

// K [n_sink, head_dim] and V [n_sink, rank_v] of the positions there are.
std::vector<std::byte> SinkRows(const SequenceCache& cache, const CacheLayout& layout,
                                int layer_idx, int kv_head_idx) {
  const BlockShape& shape = layout.shape(layer_idx, kv_head_idx);
  std::vector<std::byte> rows(static_cast<size_t>(SinkBytes(layout, shape)));
  if (rows.empty()) return rows;
  const std::byte* sink_k = cache.sink_k(layer_idx, kv_head_idx);
  const std::byte* sink_v = cache.sink_v(layer_idx, kv_head_idx);
  const int64_t n_filled = std::min(cache.n_tokens(), layout.n_sink);
  const int64_t element_bytes = SizeOf(shape.row_type);
  std::memcpy(rows.data(), sink_k, static_cast<size_t>(n_filled * layout.head_dim * element_bytes));
  std::memcpy(rows.data() + (sink_v - sink_k), sink_v,
              static_cast<size_t>(n_filled * shape.rank_v * element_bytes));
  return rows;
}

// n_bytes of an object of object_bytes, the rest zero.
Status WriteObject(const std::byte* object, int64_t n_bytes, int64_t object_bytes,
                   const RowSink& write) {
  if (object_bytes == 0) return OkStatus();
  KVL_RETURN_IF_ERROR(write({object, static_cast<size_t>(n_bytes)}));
  const std::byte zeros[kObjectAlignment] = {};
  return write({zeros, static_cast<size_t>(object_bytes - n_bytes)});
}

Status WriteRecords(const SequenceCache& cache, const CacheLayout& layout, const HeldRuns& held,
                    int layer_idx, int kv_head_idx, const RowSink& write) {
  const auto runs = cache.runs(layer_idx, kv_head_idx).subspan(held.n_gone());
  for (size_t r = 0; r < runs.size(); ++r) {
    const PackedShape shape = PackedShapeOf(layout, layer_idx, kv_head_idx, held.runs()[r]);
    KVL_RETURN_IF_ERROR(
        WriteObject(runs[r].record, RunRecordBytes(shape), RunRecordObjectBytes(shape), write));
    if (!layout.OwnsLayerRecord(kv_head_idx)) continue;
    KVL_RETURN_IF_ERROR(WriteObject(runs[r].layer_record, LayerRecordBytes(shape),
                                    LayerRecordObjectBytes(shape), write));
  }
  return OkStatus();
}

// The table of n_blocks, zero behind its n_entries.
Status WriteEntries(const EntryTable& table, int64_t n_entries, int64_t n_blocks,
                    const RowSink& write) {
  std::vector<std::byte> bytes(n_blocks * EntryTable::BlockBytes(table.has_sums()));
  const EntryTable copy(bytes.data(), table.has_sums());
  for (int64_t e = 0; e < n_entries; ++e) {
    copy.position(e) = table.position(e);
    if (table.has_sums()) copy.sum(e) = table.sum(e);
  }
  return write(bytes);
}

Status WriteHead(const SequenceCache& cache, const CacheLayout& layout, int layer_idx,
                 int kv_head_idx, const RowSink& write) {
  const BlockShape shape = cache.shape(layer_idx, kv_head_idx);
  const HeldRuns held = HeldRunsOf(layout, cache, layer_idx, kv_head_idx);
  KVL_RETURN_IF_ERROR(write(SinkRows(cache, layout, layer_idx, kv_head_idx)));
  const auto blocks = cache.blocks(layer_idx, kv_head_idx);
  for (const RunExtent& run : held.runs()) {
    const PackedShape packed = PackedShapeOf(layout, layer_idx, kv_head_idx, run);
    for (int64_t b = std::max(run.first_block, held.n_unseen()); b < run.first_block + run.n_blocks;
         ++b) {
      KVL_RETURN_IF_ERROR(
          WriteObject(blocks[b], PackedBlockBytes(packed), PackedBlockObjectBytes(packed), write));
    }
  }
  std::vector<std::byte> copy(static_cast<size_t>(BlockObjectBytes(shape)));
  const int64_t first_plain = std::max(held.n_sealed(), held.n_unseen());
  const int64_t n_entries = cache.n_entries(layer_idx, kv_head_idx);
  int64_t n_left = std::max<int64_t>(0, n_entries - first_plain * kBlockSize);
  for (const std::byte* block : blocks.subspan(static_cast<size_t>(first_plain))) {
    std::memcpy(copy.data(), block, static_cast<size_t>(BlockBytes(shape)));
    ClearUnfilled(shape, static_cast<int>(std::min<int64_t>(n_left, kBlockSize)), copy.data());
    KVL_RETURN_IF_ERROR(write(copy));
    n_left = std::max<int64_t>(0, n_left - kBlockSize);
  }
  KVL_RETURN_IF_ERROR(WriteRecords(cache, layout, held, layer_idx, kv_head_idx, write));
  if (const float* gram = cache.query_gram(layer_idx, kv_head_idx); gram != nullptr) {
    const auto n_bytes = static_cast<size_t>(QueryGramBytes(layout));
    KVL_RETURN_IF_ERROR(write(std::as_bytes(std::span(gram, n_bytes / sizeof(float)))));
  }
  if (const std::byte* open = cache.open_entry(layer_idx, kv_head_idx); open != nullptr) {
    const int64_t n_bytes = OpenEntryBytes(layout, shape);
    return write({open, static_cast<size_t>(n_bytes)});
  }
  const EntryTable table = cache.entries(layer_idx, kv_head_idx);
  if (table.empty()) return OkStatus();
  return WriteEntries(table, n_entries, std::ssize(blocks), write);
}

class RowCopier {
 public:
  RowCopier(std::span<const std::byte> rows, const CacheLayout& layout, SequenceCache* cache)
      : layout_(layout), rows_(rows), cache_(cache) {}

  // False when a record would send its reader out of its block.
  bool Copy() {
    for (int layer_idx = 0; layer_idx < layout_.n_layers; ++layer_idx) {
      for (int kv_head_idx = 0; kv_head_idx < layout_.n_kv_heads; ++kv_head_idx) {
        CopyBlocks(layer_idx, kv_head_idx);
        if (!CopyRecords(layer_idx, kv_head_idx)) return false;
        if (float* gram = cache_->query_gram(layer_idx, kv_head_idx); gram != nullptr) {
          Take(reinterpret_cast<std::byte*>(gram), QueryGramBytes(layout_));
        }
        if (!CopyEntries(layer_idx, kv_head_idx)) return false;
        if (!CopyOpenEntry(layer_idx, kv_head_idx)) return false;
      }
    }
    KVL_CHECK(rows_.empty());
    return true;
  }

 private:
  void Take(std::byte* to, int64_t n_bytes) {
    if (n_bytes == 0) return;
    std::memcpy(to, rows_.data(), static_cast<size_t>(n_bytes));
    rows_ = rows_.subspan(static_cast<size_t>(n_bytes));
  }

  void CopyBlocks(int layer_idx, int kv_head_idx) {
    const BlockShape shape = cache_->shape(layer_idx, kv_head_idx);
    const HeldRuns held = HeldRunsOf(layout_, *cache_, layer_idx, kv_head_idx);
    std::byte* sink = cache_->sink_k(layer_idx, kv_head_idx);
    if (sink != nullptr) Take(sink, SinkBytes(layout_, shape));
    const auto blocks = cache_->blocks(layer_idx, kv_head_idx);
    for (const RunExtent& run : held.runs()) {
      const PackedShape packed = PackedShapeOf(layout_, layer_idx, kv_head_idx, run);
      for (int64_t b = std::max(run.first_block, held.n_unseen());
           b < run.first_block + run.n_blocks; ++b) {
        Take(blocks[b], PackedBlockObjectBytes(packed));
      }
    }
    const int64_t first_plain = std::max(held.n_sealed(), held.n_unseen());
    for (std::byte* block : blocks.subspan(static_cast<size_t>(first_plain))) {
      Take(block, BlockObjectBytes(shape));
    }
  }

  bool CopyRecords(int layer_idx, int kv_head_idx) {
    const HeldRuns held = HeldRunsOf(layout_, *cache_, layer_idx, kv_head_idx);
    const auto runs = cache_->runs(layer_idx, kv_head_idx).subspan(held.n_gone());
    for (size_t r = 0; r < runs.size(); ++r) {
      const PackedShape shape = PackedShapeOf(layout_, layer_idx, kv_head_idx, held.runs()[r]);
      // The cache's own objects, which nothing reads yet.
      Take(const_cast<std::byte*>(runs[r].record), RunRecordObjectBytes(shape));
      if (!IsSoundRunRecord(shape, runs[r].record)) return false;
      if (!layout_.OwnsLayerRecord(kv_head_idx)) continue;
      Take(const_cast<std::byte*>(runs[r].layer_record), LayerRecordObjectBytes(shape));
      if (!IsSoundLayerRecord(shape, runs[r].layer_record)) return false;
    }
    return CountsAreSound(layer_idx, kv_head_idx, held);
  }

  // Of the blocks of a head whose records, and those of its layer, are there.
  bool CountsAreSound(int layer_idx, int kv_head_idx, const HeldRuns& held) const {
    const auto runs = cache_->runs(layer_idx, kv_head_idx).subspan(held.n_gone());
    const auto blocks = cache_->blocks(layer_idx, kv_head_idx);
    for (size_t r = 0; r < runs.size(); ++r) {
      const RunExtent& run = held.runs()[r];
      const PackedShape shape = PackedShapeOf(layout_, layer_idx, kv_head_idx, run);
      for (int64_t b = std::max(run.first_block, held.n_unseen());
           b < run.first_block + run.n_blocks; ++b) {
        if (!HasSoundCounts(shape, kv_head_idx % layout_.n_heads_per_run(),
                            {runs[r].record, runs[r].layer_record},
                            static_cast<int>(b - run.first_block), blocks[b])) {
          return false;
        }
      }
    }
    return true;
  }

  bool CopyEntries(int layer_idx, int kv_head_idx) {
    const EntryTable table = cache_->entries(layer_idx, kv_head_idx);
    if (table.empty()) return true;
    const int64_t n_blocks = std::ssize(cache_->blocks(layer_idx, kv_head_idx));
    Take(reinterpret_cast<std::byte*>(table.positions(0)),
         n_blocks * EntryTable::BlockBytes(table.has_sums()));
    // Prunes count on it that entries are of different positions.
    std::vector<bool> is_taken(static_cast<size_t>(cache_->n_tokens()));
    for (int e = 0; e < cache_->n_entries(layer_idx, kv_head_idx); ++e) {
      const int position = table.position(e);
      if (position < layout_.n_sink || position >= cache_->n_tokens() || is_taken[position]) {
        return false;
      }
      is_taken[position] = true;
    }
    return true;
  }

  bool CopyOpenEntry(int layer_idx, int kv_head_idx) {
    std::byte* object = cache_->open_entry(layer_idx, kv_head_idx);
    if (object == nullptr) return true;
    const BlockShape& shape = layout_.shape(layer_idx, kv_head_idx);
    Take(object, OpenEntryBytes(layout_, shape));
    const int n_joined =
        OpenEntry(object, *layout_.retention->merge, layout_.head_dim, shape.rank_v).n_positions();
    const int n_entries = std::max(0, cache_->n_entries(layer_idx, kv_head_idx));
    return n_joined >= 0 && n_joined <= cache_->n_tokens() && (n_joined > 0) == (n_entries > 0);
  }

  const CacheLayout& layout_;
  std::span<const std::byte> rows_;
  SequenceCache* cache_;
};

}  // namespace

std::vector<MergedLength> MergedLengths(const SequenceCache& cache, const CacheLayout& layout) {
  std::vector<MergedLength> lengths;
  for (int i = 0; layout.MergesEntries() && i < std::ssize(layout.shapes); ++i) {
    lengths.push_back(cache.merged_length(i / layout.n_kv_heads, i % layout.n_kv_heads));
  }
  return lengths;
}

int64_t RowBytes(const CacheLayout& layout, const SavedLengths& lengths, int64_t n_max) {
  const auto [n_tokens, n_prompt, merged] = lengths;
  if (n_tokens == 0) return 0;
  // Runs are listed one by one: not more of them than the file has bytes.
  if (layout.seal.has_value() && n_tokens / kBlockSize > n_max) return -1;
  HeldRuns held(RunsOf(layout, n_tokens, n_prompt));
  int64_t n_held = 0;
  if (merged.empty()) n_held = HeldBlocks(layout, n_tokens, n_prompt);
  int64_t n_bytes = 0;
  int layer_rank_v = 0;
  for (size_t i = 0; i < layout.shapes.size(); ++i) {
    const BlockShape& head = layout.shapes[i];
    const int layer_idx = static_cast<int>(i) / layout.n_kv_heads;
    const int kv_head_idx = static_cast<int>(i) % layout.n_kv_heads;
    if (!merged.empty()) n_held = (int64_t{merged[i].n_entries} + kBlockSize - 1) / kBlockSize;
    if (layout.HasRunsOfHeads()) held = HeldRuns(RunsOf(layout, merged[i]));
    held.LookAtLayer(layout, layer_idx, n_tokens);
    const int64_t first_plain = std::max(held.n_sealed(), held.n_unseen());
    const BlockShape plain = layout.PlainShapeAt(i, n_tokens, n_prompt);
    n_bytes += SinkBytes(layout, head) + (n_held - first_plain) * BlockObjectBytes(plain);
    n_bytes += OpenEntryBytes(layout, head);
    if (!layout.RetentionIsOver(n_tokens, n_prompt)) n_bytes += EntryTableBytes(layout, n_held);
    if (held.n_sealed() == 0) n_bytes += QueryGramBytes(layout);
    const bool is_first = layout.OwnsLayerRecord(kv_head_idx);
    if (is_first) layer_rank_v = SharedRankV(layout, i);
    for (const RunExtent& run : held.runs()) {
      const PackedShape shape = PackedShapeOf(layout, head, layer_rank_v, run);
      const int64_t n_blocks =
          run.first_block + run.n_blocks - std::max(run.first_block, held.n_unseen());
      n_bytes += n_blocks * PackedBlockObjectBytes(shape) + RunRecordObjectBytes(shape);
      if (is_first) n_bytes += LayerRecordObjectBytes(shape);
      if (n_bytes > n_max) return -1;
    }
    if (n_bytes > n_max) return -1;
  }
  return n_bytes;
}

Status WriteRows(const SequenceCache& cache, const CacheLayout& layout, const RowSink& write) {
  for (int layer_idx = 0; layer_idx < layout.n_layers; ++layer_idx) {
    for (int kv_head_idx = 0; kv_head_idx < layout.n_kv_heads; ++kv_head_idx) {
      KVL_RETURN_IF_ERROR(WriteHead(cache, layout, layer_idx, kv_head_idx, write));
    }
  }
  return OkStatus();
}

bool CopyRows(std::span<const std::byte> rows, const CacheLayout& layout, SequenceCache* cache) {
  return RowCopier(rows, layout, cache).Copy();
}

}  // namespace kvlathe
