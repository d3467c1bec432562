// The sealed runs of a sequence: sealing them, and opening them again where entries are dropped.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/blocks/head_table.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

RunExtent SequenceCache::NextRun(int64_t n_tokens) const {
  const int64_t n_sealed = heads_.empty() ? 0 : heads_.back().n_sealed();
  return RunEndingAt(*layout_, n_tokens, n_prompt_, n_sealed);
}

// To prune and seal in layers from first_layer on what a step to n_tokens ended; 0 where nothing is
// to be done.
int64_t SequenceCache::SealRoom(int64_t n_tokens, const RunExtent& run, int first_layer) const {
  if (SealsAgainAt(*layout_, n_tokens, n_prompt_)) {
    return ReopenRoomBytes(*layout_, n_tokens, n_prompt_, first_layer);
  }
  if (run.n_blocks == 0) return 0;
  const int64_t n_gone = std::clamp<int64_t>(n_released_ - run.first_block, 0, run.n_blocks);
  return SealRoomBytes(*layout_, run, first_layer, n_gone);
}

// Runs of a head once `run` is sealed.
int64_t SequenceCache::RunsWith(const RunExtent& run, const HeadTable& head) {
  if (run.n_blocks == 0) return 0;
  return run.first_block == 0 ? 1 : head.n_runs + 1;
}

std::span<const PackedRun> SequenceCache::runs(int layer_idx, int kv_head_idx) const {
  const HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + kv_head_idx];
  return {head.runs(), static_cast<size_t>(head.n_runs)};
}

void SequenceCache::ReleaseRecords(PackedRun* run) {
  for (const std::byte** record : {&run->record, &run->layer_record}) {
    if (*record != nullptr) pool_->Release(const_cast<std::byte*>(std::exchange(*record, nullptr)));
  }
}

// Part of what was set aside for the layer before as well.
void SequenceCache::SetRoomAside(int first_layer) {
  aside_bytes_ = SealRoom(n_tokens_, run_to_seal_, first_layer);
  KVL_CHECK(pool_->SetAside(aside_bytes_));
}

bool SequenceCache::must_reopen(int layer_idx) const {
  return must_prune() && !runs(layer_idx, 0).empty();
}

StatusOr<std::vector<std::vector<std::byte*>>> SequenceCache::TakeKeptBlocks(int layer_idx) {
  KVL_CHECK(must_reopen(layer_idx));
  pool_->ReturnAside(std::exchange(aside_bytes_, 0));
  std::vector<std::vector<std::byte*>> kept(layout_->n_kv_heads);
  const int64_t n_blocks = (kept_.n + kBlockSize - 1) / kBlockSize;
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const int64_t n_bytes = BlockObjectBytes(layout_->shape(layer_idx, g));
    for (int64_t b = 0; b < n_blocks; ++b) {
      std::byte* block = pool_->Allocate(ObjectKind::kBlock, n_bytes);
      if (block == nullptr) {
        for (const auto& head : kept) {
          for (std::byte* taken : head) pool_->Release(taken);
        }
        return Error(StatusCode::kResourceExhausted, "no memory to open {} positions of layer {}",
                     kept_.n, layer_idx);
      }
      kept[g].push_back(block);
    }
  }
  return kept;
}

void SequenceCache::PlaceKeptBlocks(int layer_idx,
                                    const std::vector<std::vector<std::byte*>>& kept) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + g];
    for (int64_t b = 0; b < head.n_blocks; ++b) pool_->Release(head.blocks()[b]);
    for (int64_t r = 0; r < head.n_runs; ++r) ReleaseRecords(&head.runs()[r]);
    head.n_runs = 0;
    SetTableSize(RunTableBytes(run_to_seal_.n_blocks > 0 ? 1 : 0), &head.run_table,
                 &head.run_table_bytes);
    head.n_blocks = std::ssize(kept[g]);
    std::ranges::copy(kept[g], head.blocks());
  }
  if (run_to_seal_.n_blocks == 0 && layer_idx + 1 < layout_->n_layers) SetRoomAside(layer_idx + 1);
}

StatusOr<SequenceCache::RunObjects> SequenceCache::TakeRunObjects(int layer_idx) {
  KVL_CHECK(must_seal());
  pool_->ReturnAside(std::exchange(aside_bytes_, 0));
  RunObjects objects;
  bool ok = true;
  const auto take = [&](ObjectKind kind, int64_t n_bytes) -> std::byte* {
    if (n_bytes == 0 || !ok) return nullptr;
    std::byte* object = pool_->Allocate(kind, n_bytes);
    ok = object != nullptr;
    return object;
  };
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const PackedShape shape = PackedShapeOf(*layout_, layer_idx, g, run_to_seal_);
    std::vector<std::byte*>& packed = objects.packed.emplace_back();
    for (int64_t b = 0; b < run_to_seal_.n_blocks; ++b) {
      packed.push_back(take(ObjectKind::kBlock, PackedBlockObjectBytes(shape)));
    }
    objects.records.push_back(take(ObjectKind::kRunRecord, RunRecordObjectBytes(shape)));
    if (g == 0) {
      objects.layer_record = take(ObjectKind::kLayerRecord, LayerRecordObjectBytes(shape));
    }
  }
  if (ok) return objects;
  DropRunObjects(objects);
  return Error(StatusCode::kResourceExhausted, "no memory to seal {} positions of layer {}",
               run_to_seal_.n_blocks * kBlockSize, layer_idx);
}

void SequenceCache::DropRunObjects(const RunObjects& objects) {
  const auto release = [&](std::byte* object) {
    if (object != nullptr) pool_->Release(object);
  };
  for (const std::vector<std::byte*>& head : objects.packed) std::ranges::for_each(head, release);
  std::ranges::for_each(objects.records, release);
  release(objects.layer_record);
}

void SequenceCache::PlaceRun(int layer_idx, const RunObjects& objects) {
  // One reference for each head, before any of them may give its own back.
  for (int g = 1; objects.layer_record != nullptr && g < layout_->n_kv_heads; ++g) {
    pool_->AddReference(objects.layer_record);
  }
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = heads_[layer_idx * layout_->n_kv_heads + g];
    for (int64_t b = 0; b < run_to_seal_.n_blocks; ++b) {
      std::byte*& block = head.blocks()[run_to_seal_.first_block + b];
      if (block == nullptr) {  // fell out of the window
        pool_->Release(objects.packed[g][b]);
        continue;
      }
      pool_->Release(std::exchange(block, objects.packed[g][b]));
    }
    head.runs()[head.n_runs++] = {.first_block = static_cast<int>(run_to_seal_.first_block),
                                  .n_blocks = static_cast<int>(run_to_seal_.n_blocks),
                                  .is_prompt = run_to_seal_.is_prompt,
                                  .is_repaired = run_to_seal_.is_repaired,
                                  .record = objects.records[g],
                                  .layer_record = objects.layer_record};
    // A narrow window may have left the whole run behind before it is sealed.
    const int64_t last_block = run_to_seal_.first_block + run_to_seal_.n_blocks - 1;
    if (head.blocks()[last_block] == nullptr) ReleaseRecords(&head.runs()[head.n_runs - 1]);
  }
  if (layer_idx + 1 == layout_->n_layers) {
    run_to_seal_ = {};
    return;
  }
  SetRoomAside(layer_idx + 1);
}

}  // namespace kvlathe
