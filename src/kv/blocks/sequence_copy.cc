// A second sequence with all that the first one holds.
#include <map>
#include <memory>
#include <utility>

#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// At every moment this cache is one that Clear can give back.
bool SequenceCache::CopyBlocks(const HeadTable& from, HeadTable* to) {
  const auto copy = [&](const ObjectId& object, ObjectId* copied) {
    if (!object.is_null()) *copied = pool_->CopyOf(object);
    return object.is_null() == copied->is_null();
  };
  for (ObjectId HeadTable::*const object : HeadTable::kOwned) {
    if (!copy(from.*object, &(to->*object))) return false;
  }
  if (!SetTableSize(from.table_bytes, &to->blocks, &to->table_bytes) ||
      !SetTableSize(from.run_table_bytes, &to->runs, &to->run_table_bytes)) {
    return false;
  }
  to->entry_table_bytes = from.entry_table_bytes;
  to->n_dropped = from.n_dropped;
  for (const ObjectId& block : from.blocks) {
    ObjectId copied;
    if (!copy(block, &copied)) return false;
    to->blocks.push_back(copied);
  }
  return true;
}

// Behind its blocks. Records that heads of the layer share are shared in the copy as well: `shared`
// has those that were copied, by the original.
bool SequenceCache::CopyRuns(const HeadTable& from, HeadTable* to,
                             std::map<ObjectId, ObjectId>* shared) {
  for (SealedRun run : from.runs) {
    const ObjectId layer_record = std::exchange(run.layer_record, {});
    if (!run.record.is_null()) {
      run.record = pool_->CopyOf(run.record);
      if (run.record.is_null()) return false;
    }
    if (!layer_record.is_null()) {
      const auto [known, is_new] = shared->try_emplace(layer_record, ObjectId());
      if (is_new) {
        known->second = pool_->CopyOf(layer_record);
      } else {
        pool_->AddReference(known->second);
      }
      if (known->second.is_null()) {
        ReleaseRecords(&run);
        return false;
      }
      run.layer_record = known->second;
    }
    to->runs.push_back(run);
  }
  return true;
}

StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Copy() const {
  if (must_seal() || must_prune() || must_cut_keys()) {
    return Error(StatusCode::kDataLoss,
                 "the sequence failed at {} positions and cannot be copied; start it again",
                 n_tokens_);
  }
  auto copy = std::make_unique<SequenceCache>(layout_, pool_);
  copy->n_tokens_ = n_tokens_;
  copy->n_prompt_ = n_prompt_;
  copy->n_generated_ = n_generated_;
  copy->first_whole_layer_ = first_whole_layer_;
  copy->released_at_ = released_at_;
  copy->n_writable_ = n_writable_;
  copy->reencoding_ = reencoding_;
  bool ok = pool_->SetAside(aside_bytes_);
  if (ok) copy->aside_bytes_ = aside_bytes_;
  std::map<ObjectId, ObjectId> shared;
  for (size_t i = 0; ok && i < heads_.size(); ++i) {
    if (i % layout_->n_kv_heads == 0) shared.clear();
    ok = copy->CopyBlocks(heads_[i], &copy->heads_[i]) &&
         copy->CopyRuns(heads_[i], &copy->heads_[i], &shared);
  }
  if (ok) return copy;
  copy.reset();  // what is free is told without it
  const PoolUsage usage = pool_->usage();
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: a copy of {} positions needs {} bytes, {} of {} are free; raise "
               "--kv-memory, or run fewer or shorter sequences",
               n_tokens_, bytes().total(), usage.budget_bytes - usage.used_bytes,
               usage.budget_bytes);
}

}  // namespace kvlathe
