#include "kv/blocks/sequence_rows.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "format/entry_table.h"
#include "format/open_entry.h"
#include "format/split_bits/coded_rows.h"
#include "kv/cache_objects.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

void Append(std::span<const std::byte> bytes, std::string* out) {
  out->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// What a file holds of a head of a cache: not what its layer's window leaves out of sight of the
// last position.
class SavedContents {
 public:
  SavedContents(const SequenceCache& cache, const CacheLayout& layout)
      : cache_(cache), layout_(layout) {}

  HeadContents Of(int layer_idx, int kv_head_idx) {
    const CacheHead head = cache_.head(layer_idx, kv_head_idx);
    runs_.clear();
    for (const SealedRun& run : head.runs()) runs_.push_back(ExtentOf(run));
    return {.plain = head.shape(),
            .n_blocks = std::ssize(head.blocks()),
            .n_gone = BlocksOutOfWindow(layout_, layer_idx, cache_.n_tokens() - 1),
            .has_sinks = !SinksOutOfWindow(layout_, layer_idx, cache_.n_tokens() - 1),
            .entry_bytes = EntryBytesAt(layout_, std::ssize(head.blocks()), cache_.n_tokens(),
                                        cache_.n_prompt()),
            .runs = runs_};
  }

 private:
  const SequenceCache& cache_;
  const CacheLayout& layout_;
  std::vector<RunExtent> runs_;
};

bool IsSaved(const CacheObjects& objects) {
  return objects.part != ObjectPart::kBlockTable && objects.part != ObjectPart::kRunTable;
}

// Object i of `objects` in the cache.
ObjectId ObjectIn(const SequenceCache& cache, int layer_idx, int kv_head_idx,
                  const CacheObjects& objects, int64_t i) {
  const CacheHead head = cache.head(layer_idx, kv_head_idx);
  const auto record = [&] { return head.runs()[objects.first]; };
  switch (objects.part) {
    case ObjectPart::kSink:
      return head.sink_k().object;
    case ObjectPart::kSealedBlock:
    case ObjectPart::kPlainBlock:
      return head.blocks()[objects.first + i];
    case ObjectPart::kRunRecord:
      return record().record;
    case ObjectPart::kLayerRecord:
      return record().layer_record;
    case ObjectPart::kQueryGram:
      return head.query_gram();
    case ObjectPart::kOpenEntry:
      return head.open_entry();
    case ObjectPart::kEntries:
      return head.entries().empty() ? head.sorted_positions().object : head.entries().object;
    case ObjectPart::kBlockTable:
    case ObjectPart::kRunTable:
      break;
  }
  KVL_CHECK(false);
}

// A block of which n_filled entries are written, the others made zero.
void ClearUnfilled(const CacheLayout& layout, const BlockShape& shape, int n_filled,
                   std::byte* block) {
  const bool is_coded = layout.CodesOpenRows();
  const int64_t element_bytes = is_coded ? 1 : shape.element_bytes();
  const int64_t key_bytes = is_coded ? CodedKeyBytes(shape) : KeyBytes(shape);
  const auto clear = [&](std::byte* base, int64_t offset) {
    std::memset(base + offset * element_bytes, 0, static_cast<size_t>(element_bytes));
  };
  for (int token = n_filled; token < kBlockSize; ++token) {
    for (int r = 0; r < shape.rank_k; ++r) {
      clear(block, is_coded ? CodedKeyOffset(token, r) : KeyOffset(token, r));
    }
    if (is_coded) clear(block, CodedKeyScaleOffset(shape, token));
    if (shape.has_one_side) continue;
    for (int r = 0; r < shape.rank_v; ++r) {
      clear(block + key_bytes,
            is_coded ? CodedValueOffset(shape.rank_v, token, r) : ValueOffset(shape, token, r));
    }
    if (is_coded) clear(block, CodedValueScaleOffset(shape, token));
  }
  const int64_t n_bytes = OpenBlockBytes(layout.codec(), shape);
  std::memset(block + n_bytes, 0, static_cast<size_t>(BlockObjectBytes(layout, shape) - n_bytes));
}

std::vector<std::byte> BytesOf(const SequenceCache& cache, const ObjectId& object,
                               int64_t n_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(n_bytes));
  cache.device().Download({object}, bytes);
  return bytes;
}

// K [n_sink, head_dim] and V [n_sink, sink_value_width()] of the positions there are.
std::vector<std::byte> SinkRows(const SequenceCache& cache, const CacheLayout& layout,
                                int layer_idx, int kv_head_idx) {
  const BlockShape& shape = layout.shape(layer_idx, kv_head_idx);
  std::vector<std::byte> rows(static_cast<size_t>(SinkBytes(layout, shape)));
  if (rows.empty()) return rows;
  const CacheHead head = cache.head(layer_idx, kv_head_idx);
  const ObjectPlace sink_v = head.sink_v();
  const int64_t n_filled = std::min(cache.n_tokens(), layout.n_sink);
  const int64_t element_bytes = SizeOf(shape.row_type);
  const auto n_k = static_cast<size_t>(n_filled * layout.head_dim * element_bytes);
  const auto n_v = static_cast<size_t>(n_filled * shape.sink_value_width() * element_bytes);
  cache.device().Download(head.sink_k(), std::span(rows).first(n_k));
  cache.device().Download(sink_v, std::span(rows).subspan(static_cast<size_t>(sink_v.offset), n_v));
  return rows;
}

// The table of n_blocks, zero behind its n_entries.
void AppendEntries(const SequenceCache& cache, const EntryTableId& table, int64_t n_entries,
                   int64_t n_blocks, std::string* out) {
  std::vector<std::byte> bytes =
      BytesOf(cache, table.object, n_blocks * EntryTable::BlockBytes(table.has_sums));
  const EntryTable copy(bytes.data(), table.has_sums);
  for (int64_t e = std::max<int64_t>(0, n_entries); e < n_blocks * kBlockSize; ++e) {
    copy.position(e) = 0;
    if (table.has_sums) copy.sum(e) = 0;
  }
  Append(bytes, out);
}

// Plain blocks of a head, what no position has filled made zero.
void AppendPlainBlocks(const SequenceCache& cache, int layer_idx, int kv_head_idx,
                       const CacheObjects& objects, std::string* out) {
  const CacheHead head = cache.head(layer_idx, kv_head_idx);
  const BlockShape shape = head.shape();
  std::vector<std::byte> copy(static_cast<size_t>(objects.object_bytes));
  const int64_t n_entries = head.n_entries();
  int64_t n_left = std::max<int64_t>(0, n_entries - objects.first * kBlockSize);
  for (int64_t i = 0; i < objects.n; ++i) {
    cache.device().Download({ObjectIn(cache, layer_idx, kv_head_idx, objects, i)},
                            std::span(copy).first(static_cast<size_t>(objects.n_bytes)));
    ClearUnfilled(cache.layout(), shape, static_cast<int>(std::min<int64_t>(n_left, kBlockSize)),
                  copy.data());
    Append(copy, out);
    n_left = std::max<int64_t>(0, n_left - kBlockSize);
  }
}

void AppendObjects(const SequenceCache& cache, int layer_idx, int kv_head_idx,
                   const CacheObjects& objects, std::string* out) {
  const CacheHead head = cache.head(layer_idx, kv_head_idx);
  switch (objects.part) {
    case ObjectPart::kSink:
      return Append(SinkRows(cache, cache.layout(), layer_idx, kv_head_idx), out);
    case ObjectPart::kPlainBlock:
      return AppendPlainBlocks(cache, layer_idx, kv_head_idx, objects, out);
    case ObjectPart::kEntries:
      if (head.entries().empty()) break;  // sorted positions are all there
      return AppendEntries(cache, head.entries(), head.n_entries(), std::ssize(head.blocks()), out);
    default:
      break;
  }
  for (int64_t i = 0; i < objects.n; ++i) {
    const ObjectId object = ObjectIn(cache, layer_idx, kv_head_idx, objects, i);
    const size_t begin = out->size();
    out->resize(begin + static_cast<size_t>(objects.object_bytes));
    const auto bytes = std::as_writable_bytes(std::span(*out)).subspan(begin);
    cache.device().Download({object}, bytes.first(static_cast<size_t>(objects.n_bytes)));
  }
}

class RowCopier {
 public:
  RowCopier(std::span<const std::byte> rows, const CacheLayout& layout, SequenceCache* cache)
      : layout_(layout), rows_(rows), cache_(cache) {}

  // False when a record would send its reader out of its block.
  bool Copy() {
    ForEachObject(layout_, SavedContents(*cache_, layout_),
                  [&](int layer_idx, int kv_head_idx, const CacheObjects& objects) {
                    if (!IsSaved(objects)) return;
                    for (int64_t i = 0; i < objects.n; ++i) {
                      Take(ObjectIn(*cache_, layer_idx, kv_head_idx, objects, i),
                           objects.object_bytes);
                    }
                  });
    KVL_CHECK(rows_.empty());
    for (int layer_idx = 0; layer_idx < layout_.n_layers; ++layer_idx) {
      for (int kv_head_idx = 0; kv_head_idx < layout_.n_kv_heads; ++kv_head_idx) {
        if (!RunsAreSound(layer_idx, kv_head_idx) || !EntriesAreSound(layer_idx, kv_head_idx) ||
            !IsOpenEntrySound(layer_idx, kv_head_idx)) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  void Take(const ObjectId& to, int64_t n_bytes) {
    const auto next = rows_.first(static_cast<size_t>(n_bytes));
    cache_->device().Upload({to}, next);
    rows_ = rows_.subspan(next.size());
  }

  bool RunsAreSound(int layer_idx, int kv_head_idx) const {
    SavedContents saved(*cache_, layout_);
    const HeadContents contents = saved.Of(layer_idx, kv_head_idx);
    const CacheHead head = cache_->head(layer_idx, kv_head_idx);
    const auto runs = head.runs();
    const auto blocks = head.blocks();
    for (size_t r = 0; r < runs.size(); ++r) {
      const RunExtent& run = contents.runs[r];
      const int64_t end = run.first_block + run.n_blocks;
      if (end <= contents.n_gone) continue;
      const PackedShape shape = PackedShapeOf(layout_, layer_idx, kv_head_idx, run);
      const std::vector<std::byte> record = BytesOf(*cache_, runs[r].record, RunRecordBytes(shape));
      const std::vector<std::byte> layer_record =
          BytesOf(*cache_, runs[r].layer_record, LayerRecordBytes(shape));
      if (!IsSoundRunRecord(shape, record.data()) ||
          !IsSoundLayerRecord(shape, layer_record.data())) {
        return false;
      }
      for (int64_t b = std::max(run.first_block, contents.n_gone); b < end; ++b) {
        const std::vector<std::byte> block = BytesOf(*cache_, blocks[b], PackedBlockBytes(shape));
        if (!HasSoundCounts(shape, kv_head_idx % layout_.n_heads_per_run(),
                            {record.data(), layer_record.data()},
                            static_cast<int>(b - run.first_block), block.data())) {
          return false;
        }
      }
    }
    return true;
  }

  // Prunes count on it that entries are of different positions.
  bool EntriesAreSound(int layer_idx, int kv_head_idx) const {
    const CacheHead head = cache_->head(layer_idx, kv_head_idx);
    const EntryTableId entries = head.entries();
    if (entries.empty()) return SortedPositionsAreSound(head);
    const int64_t n_blocks = std::ssize(head.blocks());
    std::vector<std::byte> bytes =
        BytesOf(*cache_, entries.object, n_blocks * EntryTable::BlockBytes(entries.has_sums));
    const EntryTable table(bytes.data(), entries.has_sums);
    std::vector<bool> is_taken(static_cast<size_t>(cache_->n_tokens()));
    for (int e = 0; e < head.n_entries(); ++e) {
      const int position = table.position(e);
      if (position < layout_.n_sink || position >= cache_->n_tokens() || is_taken[position]) {
        return false;
      }
      is_taken[position] = true;
    }
    return true;
  }

  // Attention turns keys by them.
  bool SortedPositionsAreSound(const CacheHead& head) const {
    const SortedPositionsId id = head.sorted_positions();
    if (id.object.is_null()) return true;
    std::vector<std::byte> bytes =
        BytesOf(*cache_, id.object, id.n_blocks * SortedPositions::BlockBytes(id.is_wide));
    const SortedPositions positions(bytes.data(), id.n_blocks, id.is_wide);
    for (int64_t e = 0; e < int64_t{id.n_blocks} * kBlockSize; ++e) {
      if (positions.at(e) < layout_.n_sink || positions.at(e) >= cache_->n_prompt()) return false;
    }
    return true;
  }

  bool IsOpenEntrySound(int layer_idx, int kv_head_idx) const {
    const CacheHead head = cache_->head(layer_idx, kv_head_idx);
    const ObjectId object = head.open_entry();
    if (object.is_null()) return true;
    const BlockShape& shape = layout_.shape(layer_idx, kv_head_idx);
    std::vector<std::byte> bytes = BytesOf(*cache_, object, OpenEntryBytes(layout_, shape));
    const OpenEntry open(bytes.data(), *layout_.retention->merge, layout_.head_dim, shape.rank_v);
    const int n_joined = open.n_positions();
    const int n_entries = std::max(0, head.n_entries());
    return n_joined >= 0 && n_joined <= cache_->n_tokens() && (n_joined > 0) == (n_entries > 0);
  }

  const CacheLayout& layout_;
  std::span<const std::byte> rows_;
  SequenceCache* cache_;
};

}  // namespace

std::vector<MergedLength> MergedLengths(const SequenceCache& cache, const CacheLayout& layout) {
  std::vector<MergedLength> lengths;
  const bool differ = layout.MergesEntries() || layout.DropsByHead();
  for (int i = 0; differ && i < std::ssize(layout.shapes); ++i) {
    lengths.push_back(cache.head(i / layout.n_kv_heads, i % layout.n_kv_heads).merged_length());
  }
  return lengths;
}

int64_t RowBytes(const CacheLayout& layout, const SavedLengths& lengths, int64_t n_max) {
  const auto [n_tokens, n_prompt, merged, pressed] = lengths;
  if (n_tokens == 0) return 0;
  // Runs are listed one by one: not more of them than the file has bytes.
  if (layout.seal.has_value() && n_tokens / kBlockSize > n_max) return -1;
  if (!pressed.empty() && pressed.back() >= std::ssize(RunsOf(layout, n_tokens, n_prompt))) {
    return -1;
  }
  SequenceContents contents(
      layout, {.n_tokens = n_tokens, .n_prompt = n_prompt, .pressed_runs = pressed}, merged);
  int64_t n_bytes = 0;
  HeadInRun head;
  for (int i = 0; n_bytes <= n_max && i < std::ssize(layout.shapes); ++i) {
    const int layer_idx = i / layout.n_kv_heads, kv_head_idx = i % layout.n_kv_heads;
    head.owns_layer_record = layout.OwnsLayerRecord(kv_head_idx);
    if (head.owns_layer_record) head = HeadInRunOf(layout, layer_idx, kv_head_idx);
    head.shape = layout.shapes[i];
    head.storage = layout.storage(layer_idx, kv_head_idx);
    ForEachObject(layout, head, contents.Of(layer_idx, kv_head_idx),
                  [&](const CacheObjects& objects) {
                    // No sum goes far beyond what there can be.
                    if (IsSaved(objects) && n_bytes <= n_max) n_bytes += objects.total_bytes();
                  });
  }
  return n_bytes <= n_max ? n_bytes : -1;
}

void AppendRows(const SequenceCache& cache, int layer_idx, std::string* out) {
  const CacheLayout& layout = cache.layout();
  ForEachObjectOfLayer(layout, layer_idx, SavedContents(cache, layout),
                       [&](int l, int kv_head_idx, const CacheObjects& objects) {
                         if (IsSaved(objects)) AppendObjects(cache, l, kv_head_idx, objects, out);
                       });
}

std::vector<PlacedObjects> PlacesOfRows(const CacheLayout& layout, int n_tokens, int64_t n_prompt) {
  std::vector<PlacedObjects> places;
  int64_t offset = 0;
  const SequenceLength length = {.n_tokens = n_tokens, .n_prompt = n_prompt};
  ForEachObject(layout, SequenceContents(layout, length),
                [&](int layer_idx, int kv_head_idx, CacheObjects objects) {
                  if (!IsSaved(objects)) return;
                  objects.packed = nullptr;  // it lives as long as the call
                  places.push_back({layer_idx, kv_head_idx, objects, offset});
                  offset += objects.total_bytes();
                });
  return places;
}

void AppendPlaced(const SequenceCache& cache, const PlacedObjects& placed, std::string* out) {
  AppendObjects(cache, placed.layer_idx, placed.kv_head_idx, placed.objects, out);
}

bool CopyRows(std::span<const std::byte> rows, const CacheLayout& layout, SequenceCache* cache) {
  return RowCopier(rows, layout, cache).Copy();
}

}  // namespace kvlathe
