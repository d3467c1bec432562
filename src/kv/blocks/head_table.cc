#include "kv/blocks/head_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvlathe {
namespace {

// All objects but blocks and records.
constexpr ObjectId HeadTable::*kOwned[] = {&HeadTable::sink, &HeadTable::entry_table,
                                           &HeadTable::open_entry, &HeadTable::flags,
                                           &HeadTable::query_gram};

template <typename T>
bool SetTableSize(int64_t n_bytes, BlockPool* pool, std::vector<T>* table, int64_t* table_bytes) {
  if (n_bytes == *table_bytes) return true;
  if (!pool->CountHostTables(n_bytes - *table_bytes)) return false;
  std::vector<T> resized;
  resized.reserve(static_cast<size_t>(n_bytes) / sizeof(T));
  resized.insert(resized.end(), table->begin(), table->end());
  table->swap(resized);
  *table_bytes = n_bytes;
  return true;
}

// A null object has a null copy. False without room.
bool CopyObject(const ObjectId& object, BlockPool* pool, ObjectId* copied) {
  if (!object.is_null()) *copied = pool->CopyOf(object);
  return object.is_null() == copied->is_null();
}

// False without room; then `run` holds no records.
bool CopyRecords(std::map<ObjectId, ObjectId>* shared, BlockPool* pool, SealedRun* run) {
  const ObjectId record = std::exchange(run->record, {});
  const ObjectId layer_record = std::exchange(run->layer_record, {});
  if (!CopyObject(record, pool, &run->record)) return false;
  if (layer_record.is_null()) return true;
  const auto [known, is_new] = shared->try_emplace(layer_record, ObjectId());
  if (is_new) {
    known->second = pool->CopyOf(layer_record);
  } else {
    pool->AddReference(known->second);
  }
  if (known->second.is_null()) {
    ReleaseRecords(pool, run);
    return false;
  }
  run->layer_record = known->second;
  return true;
}

}  // namespace

void ReleaseRecords(BlockPool* pool, SealedRun* run) {
  for (ObjectId* record : {&run->record, &run->layer_record}) {
    if (!record->is_null()) pool->Release(std::exchange(*record, {}));
  }
}

RunExtent HeadTable::RunAt(const CacheLayout& layout, int64_t n_prompt, int64_t n_tokens) const {
  if (!layout.HasRunsOfHeads()) return RunEndingAt(layout, n_tokens, n_prompt, n_sealed());
  int64_t n_entries = n_tokens - layout.n_sink - n_dropped;
  const bool drops_yet = n_to_keep > 0 && n_dropped == 0 && n_tokens >= n_prompt;
  if (drops_yet) n_entries = std::min(n_entries, n_to_keep + n_tokens - n_prompt);
  return RunOfHeadAt(layout, n_tokens, n_prompt, n_entries, n_sealed());
}

bool HeadTable::Holds(ObjectPart part) const {
  switch (part) {
    case ObjectPart::kSink:
      return !sink.is_null();
    case ObjectPart::kQueryGram:
      return !query_gram.is_null();
    case ObjectPart::kOpenEntry:
      return !open_entry.is_null();
    case ObjectPart::kFlags:
      return !flags.is_null();
    case ObjectPart::kEntries:
    case ObjectPart::kBlockTable:
    case ObjectPart::kRunTable:
      return false;
    default:
      return true;
  }
}

bool HeadTable::SetBlockTableSize(int64_t n_bytes, BlockPool* pool) {
  return SetTableSize(n_bytes, pool, &blocks, &table_bytes);
}

bool HeadTable::SetRunTableSize(int64_t n_bytes, BlockPool* pool) {
  return SetTableSize(n_bytes, pool, &runs, &run_table_bytes);
}

bool HeadTable::SetEntryTableSize(int64_t n_bytes, BlockPool* pool) {
  if (n_bytes == entry_table_bytes) return true;
  if (n_bytes == 0) {
    pool->Release(std::exchange(entry_table, {}));
    entry_table_bytes = 0;
    return true;
  }
  const ObjectId resized = entry_table.is_null() ? pool->Allocate(ObjectKind::kTable, n_bytes)
                                                 : pool->Resize(entry_table, n_bytes);
  if (resized.is_null()) return false;
  entry_table = resized;
  entry_table_bytes = n_bytes;
  return true;
}

void HeadTable::ReleaseBlock(int64_t block_idx, BlockPool* pool) {
  pool->Release(std::exchange(blocks[block_idx], {}));
  const auto run = std::ranges::partition_point(
      runs, [&](const SealedRun& r) { return r.first_block + r.n_blocks <= block_idx; });
  if (run == runs.end() || run->first_block + run->n_blocks - 1 != block_idx) return;
  ReleaseRecords(pool, &*run);
}

void HeadTable::ReleaseSinks(BlockPool* pool) {
  if (!sink.is_null()) pool->Release(std::exchange(sink, {}));
}

void HeadTable::ReleaseBlocksBehind(int64_t n_blocks, BlockPool* pool) {
  while (this->n_blocks() > n_blocks) {
    ReleaseBlock(this->n_blocks() - 1, pool);
    blocks.pop_back();
  }
  SetBlockTableSize(TableBytes(n_blocks), pool);
}

void HeadTable::Clear(BlockPool* pool) {
  for (int64_t b = 0; b < n_blocks(); ++b) {
    if (!blocks[b].is_null()) ReleaseBlock(b, pool);  // null: it fell out of the window
  }
  for (ObjectId HeadTable::*const object : kOwned) {
    if (!(this->*object).is_null()) pool->Release(this->*object);
  }
  pool->CountHostTables(-table_bytes - run_table_bytes);
  *this = HeadTable();
}

bool HeadTable::CopyFrom(const HeadTable& from, std::map<ObjectId, ObjectId>* shared,
                         BlockPool* pool) {
  for (ObjectId HeadTable::*const object : kOwned) {
    if (!CopyObject(from.*object, pool, &(this->*object))) return false;
  }
  if (!SetBlockTableSize(from.table_bytes, pool) || !SetRunTableSize(from.run_table_bytes, pool)) {
    return false;
  }
  entry_table_bytes = from.entry_table_bytes;
  n_dropped = from.n_dropped;
  n_to_keep = from.n_to_keep;
  for (const ObjectId& block : from.blocks) {
    ObjectId copied;
    if (!CopyObject(block, pool, &copied)) return false;
    blocks.push_back(copied);
  }
  for (SealedRun run : from.runs) {
    if (!CopyRecords(shared, pool, &run)) return false;
    runs.push_back(run);
  }
  return true;
}

bool HeadTable::ShareFrom(const HeadTable& from, const SharedPart& part, BlockPool* pool) {
  if (!SetBlockTableSize(TableBytes(part.n_blocks), pool) ||
      !SetRunTableSize(RunTableBytes(part.n_runs), pool)) {
    return false;
  }
  const auto share = [&](const ObjectId& object, bool copies, ObjectId* shared) {
    if (copies) return CopyObject(object, pool, shared);
    if (!object.is_null()) pool->AddReference(object);
    *shared = object;
    return true;
  };
  n_dropped = from.n_dropped;
  n_to_keep = from.n_to_keep;
  if (!share(from.sink, part.copies_sink, &sink)) return false;
  for (int64_t b = 0; b < part.n_blocks; ++b) {
    ObjectId block;
    const bool is_last = b + 1 == part.n_blocks;
    if (!share(from.blocks[b], is_last && part.copies_last_block, &block)) return false;
    blocks.push_back(block);
  }
  for (int64_t r = 0; r < part.n_runs; ++r) {
    const SealedRun& run = runs.emplace_back(from.runs[r]);
    for (const ObjectId& record : {run.record, run.layer_record}) {
      if (!record.is_null()) pool->AddReference(record);
    }
  }
  return true;
}

}  // namespace kvlathe
