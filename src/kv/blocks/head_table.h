// What a sequence holds of one KV head.
#pragma once

#include <cstdint>
#include <vector>

#include "device/sealed_runs.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_objects.h"

namespace kvlathe {

// Heads differ in length once a method of the retention axis drops or merges entries; so each has
// its own count. Lists of ids are the host's, and count against the pool's budget; everything else
// is an object of the pool.
struct SequenceCache::HeadTable {
  ObjectId sink;
  std::vector<ObjectId> blocks;  // has room for what table_bytes hold
  int64_t table_bytes = 0;
  std::vector<SealedRun> runs;  // has room for what run_table_bytes hold
  int64_t run_table_bytes = 0;
  ObjectId entry_table;  // EntryTable of the blocks, under retention
  int64_t entry_table_bytes = 0;
  ObjectId open_entry;    // OpenEntry, where entries are merged
  ObjectId query_gram;    // QueryGramBytes, until a run is sealed
  int64_t n_dropped = 0;  // entries, dropped or merged

  // All objects but blocks and records.
  static constexpr ObjectId HeadTable::*kOwned[] = {&HeadTable::sink, &HeadTable::entry_table,
                                                    &HeadTable::open_entry, &HeadTable::query_gram};
  // Whether it holds what a head of its length has of a part; tables are counted by their own
  // sizes.
  bool Holds(ObjectPart part) const {
    switch (part) {
      case ObjectPart::kSink:
        return !sink.is_null();
      case ObjectPart::kQueryGram:
        return !query_gram.is_null();
      case ObjectPart::kOpenEntry:
        return !open_entry.is_null();
      case ObjectPart::kEntries:
      case ObjectPart::kBlockTable:
      case ObjectPart::kRunTable:
        return false;
      default:
        return true;
    }
  }

  int64_t n_blocks() const { return std::ssize(blocks); }
  int64_t n_sealed() const {
    return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
  }
};

}  // namespace kvlathe
