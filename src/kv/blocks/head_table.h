// What a sequence holds of one KV head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attend/attend.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_objects.h"

namespace kvlathe {

// Heads differ in length once a method of the retention axis drops or merges entries; so each has
// its own count.
struct SequenceCache::HeadTable {
  std::byte* sink = nullptr;
  std::byte* table = nullptr;  // [n_blocks] pointers
  int64_t table_bytes = 0;
  int64_t n_blocks = 0;
  std::byte* run_table = nullptr;  // [n_runs] PackedRun
  int64_t run_table_bytes = 0;
  int64_t n_runs = 0;
  std::byte* entry_table = nullptr;  // EntryTable of n_blocks, under retention
  int64_t entry_table_bytes = 0;
  std::byte* open_entry = nullptr;  // OpenEntry, where entries are merged
  std::byte* query_gram = nullptr;  // QueryGramBytes, until a run is sealed
  int64_t n_dropped = 0;            // entries, dropped or merged

  // All objects but blocks and records.
  static constexpr std::byte* HeadTable::*kOwned[] = {
      &HeadTable::sink,        &HeadTable::table,      &HeadTable::run_table,
      &HeadTable::entry_table, &HeadTable::open_entry, &HeadTable::query_gram};
  // Whether it holds what a head of its length has of a part; tables are counted by their own
  // sizes.
  bool Holds(ObjectPart part) const {
    switch (part) {
      case ObjectPart::kSink:
        return sink != nullptr;
      case ObjectPart::kQueryGram:
        return query_gram != nullptr;
      case ObjectPart::kOpenEntry:
        return open_entry != nullptr;
      case ObjectPart::kEntries:
      case ObjectPart::kBlockTable:
      case ObjectPart::kRunTable:
        return false;
      default:
        return true;
    }
  }

  std::byte** blocks() const { return reinterpret_cast<std::byte**>(table); }
  PackedRun* runs() const { return reinterpret_cast<PackedRun*>(run_table); }
  int64_t n_sealed() const {
    return n_runs == 0 ? 0 : runs()[n_runs - 1].first_block + runs()[n_runs - 1].n_blocks;
  }
};

}  // namespace kvlathe
