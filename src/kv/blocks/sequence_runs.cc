// The sealed runs of a sequence: sealing them, and opening them again where entries are dropped.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// The run that a head seals when n_tokens positions are there, of which none that is new has
// merged; n_blocks 0 when there is none.
RunExtent SequenceCache::NextRun(int64_t n_tokens, const HeadTable& head) const {
  if (!layout_->HasRunsOfHeads()) {
    return RunEndingAt(*layout_, n_tokens, n_prompt_, head.n_sealed());
  }
  const int64_t n_entries = n_tokens - layout_->n_sink - head.n_dropped;
  return RunOfHeadAt(*layout_, n_tokens, n_prompt_, n_entries, head.n_sealed());
}

// Those of all heads; none where no head has one. Costs as much as one head's at most steps.
std::vector<RunExtent> SequenceCache::NextRuns(int64_t n_tokens) const {
  if (!layout_->seal.has_value() || heads_.empty()) return {};
  if (!layout_->HasRunsOfHeads()) {
    const RunExtent run = NextRun(n_tokens, heads_.back());
    if (run.n_blocks == 0) return {};
    return std::vector<RunExtent>(heads_.size(), run);
  }
  if (LastSealPoint(*layout_, n_tokens, n_prompt_) != n_tokens) return {};
  std::vector<RunExtent> runs;
  bool is_empty = true;
  for (const HeadTable& head : heads_) {
    runs.push_back(NextRun(n_tokens, head));
    is_empty = is_empty && runs.back().n_blocks == 0;
  }
  return is_empty ? std::vector<RunExtent>() : runs;
}

RunExtent SequenceCache::run_to_seal(int layer_idx, int kv_head_idx) const {
  return NextRun(n_tokens_, heads_[layer_idx * layout_->n_kv_heads + kv_head_idx]);
}

// To prune and seal in layers from first_layer on what a step to n_tokens ended, `runs`; 0 where
// nothing is to be done.
int64_t SequenceCache::SealRoom(int64_t n_tokens, const std::vector<RunExtent>& runs,
                                int first_layer) const {
  if (SealsAgainAt(*layout_, n_tokens, n_prompt_)) {
    return ReopenRoomBytes(*layout_, n_tokens, n_prompt_, first_layer);
  }
  if (runs.empty()) return 0;
  return SealRoomBytes(*layout_, runs, first_layer, released_at_);
}

// Of the list of a head's runs once its own of `runs` is sealed; 0 where it has none.
int64_t SequenceCache::RunTableBytesWith(const std::vector<RunExtent>& runs,
                                         size_t head_idx) const {
  if (runs.empty() || runs[head_idx].n_blocks == 0) return 0;
  return RunTableBytes(runs[head_idx].first_block == 0 ? 1 : std::ssize(heads_[head_idx].runs) + 1);
}

std::span<const SealedRun> SequenceCache::runs(int layer_idx, int kv_head_idx) const {
  return heads_[layer_idx * layout_->n_kv_heads + kv_head_idx].runs;
}

void SequenceCache::ReleaseRecords(SealedRun* run) {
  for (ObjectId* record : {&run->record, &run->layer_record}) {
    if (!record->is_null()) pool_->Release(std::exchange(*record, {}));
  }
}

// Part of what was set aside for the layer before as well.
void SequenceCache::SetRoomAside(int first_layer) {
  aside_bytes_ = SealRoom(n_tokens_, NextRuns(n_tokens_), first_layer);
  KVL_CHECK(pool_->SetAside(aside_bytes_));
}

bool SequenceCache::must_reopen(int layer_idx) const {
  return must_prune() && !runs(layer_idx, 0).empty();
}

StatusOr<std::vector<std::vector<ObjectId>>> SequenceCache::TakeKeptBlocks(int layer_idx) {
  KVL_CHECK(must_reopen(layer_idx));
  pool_->ReturnAside(std::exchange(aside_bytes_, 0));
  std::vector<std::vector<ObjectId>> kept(layout_->n_kv_heads);
  const int64_t n_blocks = (kept_.n + kBlockSize - 1) / kBlockSize;
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const int64_t n_bytes = BlockObjectBytes(layout_->shape(layer_idx, g));
    for (int64_t b = 0; b < n_blocks; ++b) {
      const ObjectId block = pool_->Allocate(ObjectKind::kBlock, n_bytes);
      if (block.is_null()) {
        for (const auto& head : kept) {
          for (const ObjectId& taken : head) pool_->Release(taken);
        }
        return Error(StatusCode::kResourceExhausted, "no memory to open {} positions of layer {}",
                     kept_.n, layer_idx);
      }
      kept[g].push_back(block);
    }
  }
  return kept;
}

void SequenceCache::PlaceKeptBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& kept) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + g];
    for (const ObjectId& block : head.blocks) pool_->Release(block);
    for (SealedRun& run : head.runs) ReleaseRecords(&run);
    head.runs.clear();
    SetTableSize(RunTableBytes(must_seal_ ? 1 : 0), &head.runs, &head.run_table_bytes);
    head.blocks.assign(kept[g].begin(), kept[g].end());  // no more of them than before
  }
  if (!must_seal_ && layer_idx + 1 < layout_->n_layers) SetRoomAside(layer_idx + 1);
}

StatusOr<SequenceCache::RunObjects> SequenceCache::TakeRunObjects(int layer_idx) {
  KVL_CHECK(must_seal());
  pool_->ReturnAside(std::exchange(aside_bytes_, 0));
  RunObjects objects;
  bool ok = true;
  const auto take = [&](ObjectKind kind, int64_t n_bytes) -> ObjectId {
    if (n_bytes == 0 || !ok) return {};
    const ObjectId object = pool_->Allocate(kind, n_bytes);
    ok = !object.is_null();
    return object;
  };
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const RunExtent run = run_to_seal(layer_idx, g);
    const PackedShape shape = PackedShapeOf(*layout_, layer_idx, g, run);
    std::vector<ObjectId>& packed = objects.packed.emplace_back();
    for (int64_t b = 0; b < run.n_blocks; ++b) {
      packed.push_back(take(ObjectKind::kBlock, PackedBlockObjectBytes(shape)));
    }
    const bool is_empty = run.n_blocks == 0;
    objects.records.push_back(
        take(ObjectKind::kRunRecord, is_empty ? 0 : RunRecordObjectBytes(shape)));
    if (layout_->OwnsLayerRecord(g)) {
      objects.layer_records.push_back(
          take(ObjectKind::kLayerRecord, is_empty ? 0 : LayerRecordObjectBytes(shape)));
    } else {
      const ObjectId shared = objects.layer_records.back();
      if (!shared.is_null()) pool_->AddReference(shared);
      objects.layer_records.push_back(shared);
    }
  }
  if (ok) return objects;
  DropRunObjects(objects);
  return Error(StatusCode::kResourceExhausted,
               "no memory to seal what layer {} holds of {} positions", layer_idx, n_tokens_);
}

void SequenceCache::DropRunObjects(const RunObjects& objects) {
  const auto release = [&](const ObjectId& object) {
    if (!object.is_null()) pool_->Release(object);
  };
  for (const std::vector<ObjectId>& head : objects.packed) std::ranges::for_each(head, release);
  std::ranges::for_each(objects.records, release);
  std::ranges::for_each(objects.layer_records, release);
}

void SequenceCache::PlaceRunOfHead(int layer_idx, int kv_head_idx, const RunObjects& objects) {
  HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  const RunExtent run = run_to_seal(layer_idx, kv_head_idx);
  if (run.n_blocks == 0) {
    // Room for it was made while its newest entries had not merged.
    SetTableSize(RunTableBytes(std::ssize(head.runs)), &head.runs, &head.run_table_bytes);
    return;
  }
  for (int64_t b = 0; b < run.n_blocks; ++b) {
    ObjectId& block = head.blocks[run.first_block + b];
    const ObjectId packed = objects.packed[kv_head_idx][b];
    pool_->Release(block.is_null() ? packed : std::exchange(block, packed));
  }
  head.runs.push_back({.first_block = static_cast<int>(run.first_block),
                       .n_blocks = static_cast<int>(run.n_blocks),
                       .is_prompt = run.is_prompt,
                       .is_repaired = run.is_repaired,
                       .record = objects.records[kv_head_idx],
                       .layer_record = objects.layer_records[kv_head_idx]});
  if (!head.query_gram.is_null()) pool_->Release(std::exchange(head.query_gram, {}));
  // A narrow window may have left the whole run behind before it is sealed.
  const int64_t last_block = run.first_block + run.n_blocks - 1;
  if (head.blocks[last_block].is_null()) ReleaseRecords(&head.runs.back());
}

void SequenceCache::PlaceRun(int layer_idx, const RunObjects& objects) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) PlaceRunOfHead(layer_idx, g, objects);
  if (layer_idx + 1 == layout_->n_layers) {
    must_seal_ = false;
    return;
  }
  SetRoomAside(layer_idx + 1);
}

}  // namespace kvlathe
