// A head table has what a sequence holds of one KV head; the progress is how far the sequence is.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kv/blocks/block_pool.h"
#include "kv/cache_layout.h"
#include "kv/cache_objects.h"
#include "kv/seal/seal_schedule.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

// What is the same in all heads of a sequence.
struct SequenceProgress {
  int n_tokens = 0;  // positions made writable so far
  int64_t n_prompt = kEndlessPrompt;
  int64_t n_generated = 0;    // positions that come after the prompt; 0: not known
  int first_whole_layer = 0;  // once the prompt has ended: from here on keys are to be cut
  int64_t released_at = 0;    // what no position from here on can see has been given back
  int n_on_trial = 0;         // of n_tokens, the last, which are not there to stay (ExtendOnTrial)

  // Positions that no trial has added: what they end (the prompt, runs) is ended.
  int n_settled() const { return n_tokens - n_on_trial; }

  bool HasWholeKeys(const CacheLayout& layout, int layer_idx) const {
    return layout.ReadsWholeKeys() && (n_settled() < n_prompt || layer_idx >= first_whole_layer);
  }
  // The shape of a plain block of head `head_idx` of [n_layers * n_kv_heads].
  BlockShape ShapeOf(const CacheLayout& layout, size_t head_idx) const {
    const bool is_whole = HasWholeKeys(layout, static_cast<int>(head_idx) / layout.n_kv_heads);
    return is_whole ? layout.WholeKeyShape(head_idx) : layout.shapes[head_idx];
  }
};

// The run as lengths tell of it.
inline RunExtent ExtentOf(const SealedRun& run) {
  return {run.first_block, run.n_blocks, run.is_prompt, run.is_repaired, run.entry_class};
}

// Gives back the records that the run holds.
void ReleaseRecords(BlockPool* pool, SealedRun* run);

// How much of a head another sequence shares.
struct SharedPart {
  int64_t n_blocks = 0;
  int64_t n_runs = 0;  // whose blocks are among these
  // Objects in which the other sequence is going to write are copied.
  bool copies_sink = false;
  bool copies_last_block = false;
};

// Heads differ in length once a method of the retention axis drops or merges entries, so each has
// its own count. Lists of ids lie in host memory and count against the pool's budget; everything
// else is an object of the pool. `pool` is the same in all calls.
struct HeadTable {
  ObjectId sink;
  std::vector<ObjectId> blocks;  // has room for what table_bytes hold
  int64_t table_bytes = 0;
  std::vector<SealedRun> runs;  // has room for what run_table_bytes hold
  int64_t run_table_bytes = 0;
  ObjectId entry_table;  // EntryTable of the blocks, under retention
  int64_t entry_table_bytes = 0;
  ObjectId open_entry;    // OpenEntry, where entries are merged
  ObjectId flags;         // EvictionFlags, where the model decides what leaves
  ObjectId query_gram;    // QueryGramBytes, until a run is sealed
  int64_t n_dropped = 0;  // entries, dropped or merged
  // Of the prompt, that stay where it ends (CacheLayout::DropsByHead); 0: not known yet.
  int64_t n_to_keep = 0;

  int64_t n_blocks() const { return std::ssize(blocks); }
  int64_t n_sealed() const {
    return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
  }
  // How many blocks hold n_tokens positions if none of the new ones is dropped or merged.
  int64_t BlocksAt(const CacheLayout& layout, int64_t n_tokens) const {
    return BlocksFor(layout, n_tokens - n_dropped);
  }
  // The run that the head seals when n_tokens positions are there and none of the new ones has
  // merged. Its n_blocks is 0 when there is none.
  RunExtent RunAt(const CacheLayout& layout, int64_t n_prompt, int64_t n_tokens) const;
  // Whether the table holds objects of a part that a head of its length may have. Of the parts that
  // are tables, their own sizes are counted instead.
  bool Holds(ObjectPart part) const;

  // The list of ids, which has no more elements than fit into n_bytes, takes n_bytes of memory from
  // now on. False, and nothing changes, when the pool has no room for more.
  bool SetBlockTableSize(int64_t n_bytes, BlockPool* pool);
  bool SetRunTableSize(int64_t n_bytes, BlockPool* pool);
  // Does the same to the object that holds positions and votes. With 0 bytes there is none.
  bool SetEntryTableSize(int64_t n_bytes, BlockPool* pool);

  // Gives a block back. With the last block of a run its records go as well.
  void ReleaseBlock(int64_t block_idx, BlockPool* pool);
  // Gives back the sinks if the head has them.
  void ReleaseSinks(BlockPool* pool);
  // Gives back all blocks but the first n_blocks.
  void ReleaseBlocksBehind(int64_t n_blocks, BlockPool* pool);
  // Gives everything back.
  void Clear(BlockPool* pool);
  // Makes this table, which is empty, a copy of another with objects of its own. Records that heads
  // of the layer share are shared in the copy as well: `shared` maps the originals that were copied
  // so far to their copies. False when there is no room, and then Clear can give the table back.
  bool CopyFrom(const HeadTable& from, std::map<ObjectId, ObjectId>* shared, BlockPool* pool);
  // Makes this table, which is empty, one of the first objects of another, by reference. The other
  // has no merged entries, and of those that it has dropped none is among them. False when there is
  // no room, and then Clear can give the table back.
  bool ShareFrom(const HeadTable& from, const SharedPart& part, BlockPool* pool);
  // f(ObjectId) for every reference that the table holds.
  template <typename F>
  void ForEachReference(const F& f) const {
    const auto visit = [&](const ObjectId& object) {
      if (!object.is_null()) f(object);
    };
    for (const ObjectId& object : {sink, entry_table, open_entry, flags, query_gram}) visit(object);
    for (const ObjectId& block : blocks) visit(block);
    for (const SealedRun& run : runs) {
      visit(run.record);
      visit(run.layer_record);
    }
  }
};

}  // namespace kvlathe
