// Every object that the cache of a sequence is made of is named here, in one place. What counts
// bytes (byte_kinds, cache_layout), what saves and restores a sequence (blocks/sequence_rows) and
// what holds the objects (blocks/sequence_objects) go through ForEachObject: a new kind of object
// is added here, and none of them can forget it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {

// In the order in which ForEachObject tells of them. A saved sequence holds all but the tables, in
// this order.
enum class ObjectPart {
  kSink,
  kSealedBlock,
  kPlainBlock,
  kRunRecord,
  kLayerRecord,
  kQueryGram,  // what a head finds its bases from, until it has sealed a run
  kOpenEntry,  // of a head that merges positions
  kFlags,      // decisions of a head that are not settled yet
  kEntries,    // positions and votes of a head that drops entries
  kBlockTable,
  kRunTable,
};

// Objects of one part of a KV head that are alike.
struct CacheObjects {
  ObjectPart part;
  int64_t n_bytes = 0;       // that one of them uses
  int64_t object_bytes = 0;  // that it takes at the pool: n_bytes and padding
  // Blocks: place of the first in the head's table, and how many follow each other. Records: place
  // of their run among the head's runs.
  int64_t first = 0;
  int64_t n = 1;
  const PackedShape* packed = nullptr;  // of sealed blocks and of records

  int64_t total_bytes() const { return n * object_bytes; }
};

// What one KV head holds.
struct HeadContents {
  BlockShape plain;                 // of its plain blocks
  int64_t n_blocks = 0;             // in its table, sealed ones and those that are gone included
  int64_t n_gone = 0;               // the oldest of them, which fell out of the window
  bool has_sinks = true;            // they have not fallen out of it
  int64_t entry_bytes = 0;          // of what it keeps of its entries (EntryBytesAt)
  std::span<const RunExtent> runs;  // that it has sealed, oldest first

  int64_t n_sealed() const {
    return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
  }
};

// The heads that share a layer record: which of them this one is, and their rank_v together.
struct HeadInRun {
  BlockShape shape;  // as the layout has it
  HeadStorage storage;
  int layer_rank_v = 0;
  bool owns_layer_record = true;
};

// What a head holds of a run, of whose blocks the first n_gone of the head's are gone. `run_idx`:
// its place among the head's runs.
template <typename F>
void ForEachSealedBlock(const PackedShape& shape, const RunExtent& run, int64_t n_gone,
                        const F& f) {
  const int64_t first = std::max(run.first_block, n_gone);
  f(CacheObjects{ObjectPart::kSealedBlock, PackedBlockBytes(shape), PackedBlockObjectBytes(shape),
                 first, run.first_block + run.n_blocks - first, &shape});
}
template <typename F>
void ForEachRecord(const PackedShape& shape, int64_t run_idx, bool owns_layer_record, const F& f) {
  if (RunRecordBytes(shape) > 0) {
    f(CacheObjects{ObjectPart::kRunRecord, RunRecordBytes(shape), RunRecordObjectBytes(shape),
                   run_idx, 1, &shape});
  }
  if (owns_layer_record && LayerRecordBytes(shape) > 0) {
    f(CacheObjects{ObjectPart::kLayerRecord, LayerRecordBytes(shape), LayerRecordObjectBytes(shape),
                   run_idx, 1, &shape});
  }
}
template <typename F>
void ForEachObjectOfRun(const CacheLayout& layout, const HeadInRun& head, const RunExtent& run,
                        const F& f) {
  const PackedShape shape = PackedShapeOf(layout, head, run);
  ForEachSealedBlock(shape, run, 0, f);
  ForEachRecord(shape, 0, head.owns_layer_record, f);
}

// f(CacheObjects) for all that a head holds; parts without bytes are left out.
template <typename F>
void ForEachObject(const CacheLayout& layout, const HeadInRun& head, const HeadContents& contents,
                   const F& f) {
  const auto visit = [&](ObjectPart part, int64_t n_bytes) {
    if (n_bytes > 0) f(CacheObjects{part, n_bytes, n_bytes});
  };
  const auto for_each_run = [&](const auto& g) {
    for (int64_t r = 0; r < std::ssize(contents.runs); ++r) {
      const RunExtent& run = contents.runs[r];
      if (run.first_block + run.n_blocks <= contents.n_gone) continue;
      g(PackedShapeOf(layout, head, run), run, r);
    }
  };
  if (contents.has_sinks) visit(ObjectPart::kSink, SinkBytes(layout, contents.plain));
  for_each_run([&](const PackedShape& shape, const RunExtent& run, int64_t /*run_idx*/) {
    ForEachSealedBlock(shape, run, contents.n_gone, f);
  });
  const int64_t first_plain = std::max(contents.n_sealed(), contents.n_gone);
  if (first_plain < contents.n_blocks) {
    f(CacheObjects{ObjectPart::kPlainBlock, OpenBlockBytes(layout.codec(), contents.plain),
                   BlockObjectBytes(layout, contents.plain), first_plain,
                   contents.n_blocks - first_plain});
  }
  for_each_run([&](const PackedShape& shape, const RunExtent& /*run*/, int64_t run_idx) {
    ForEachRecord(shape, run_idx, head.owns_layer_record, f);
  });
  if (contents.runs.empty()) visit(ObjectPart::kQueryGram, QueryGramBytes(layout));
  visit(ObjectPart::kOpenEntry, OpenEntryBytes(layout, contents.plain));
  visit(ObjectPart::kFlags, EvictionFlagBytes(layout));
  visit(ObjectPart::kEntries, contents.entry_bytes);
  visit(ObjectPart::kBlockTable, TableBytes(contents.n_blocks));
  visit(ObjectPart::kRunTable, RunTableBytes(std::ssize(contents.runs)));
}

// What the heads of a sequence hold after a step of a length, worked out from lengths alone. Safe
// for any layout and lengths that are not negative; time grows with the number of runs.
class SequenceContents {
 public:
  // `merged`, [n_layers * n_kv_heads], where entries are merged; else empty. `layout` and `merged`
  // outlive this.
  SequenceContents(const CacheLayout& layout, const SequenceLength& length,
                   std::span<const MergedLength> merged = {});

  // Valid until the next call.
  HeadContents Of(int layer_idx, int kv_head_idx);

 private:
  const CacheLayout& layout_;
  const SequenceLength length_;
  const std::span<const MergedLength> merged_;
  int64_t n_blocks_ = 0;         // where every head has as many
  std::vector<RunExtent> runs_;  // of all heads, or of the head of the last call
};

// A head among those that share its layer record. Costs as much as there are of these.
HeadInRun HeadInRunOf(const CacheLayout& layout, int layer_idx, int kv_head_idx);

// f(layer_idx, kv_head_idx, CacheObjects) for all objects of a layer or of a sequence, head by
// head. `contents` has Of() as SequenceContents has it.
template <typename Contents, typename F>
void ForEachObjectOfLayer(const CacheLayout& layout, int layer_idx, Contents&& contents,
                          const F& f) {
  HeadInRun head;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    if (layout.OwnsLayerRecord(g)) head = HeadInRunOf(layout, layer_idx, g);
    head.shape = layout.shape(layer_idx, g);
    head.storage = layout.storage(layer_idx, g);
    head.owns_layer_record = layout.OwnsLayerRecord(g);
    ForEachObject(layout, head, contents.Of(layer_idx, g),
                  [&](const CacheObjects& objects) { f(layer_idx, g, objects); });
  }
}
template <typename Contents, typename F>
void ForEachObject(const CacheLayout& layout, Contents&& contents, const F& f) {
  for (int l = 0; l < layout.n_layers; ++l) ForEachObjectOfLayer(layout, l, contents, f);
}

// Counts objects among the bytes of their part.
void AddObjects(const CacheObjects& objects, KvBytes* bytes);

}  // namespace kvlathe
