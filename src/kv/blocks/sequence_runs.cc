// The objects of the sealed runs of a sequence, and those of runs that are opened again where
// entries are dropped.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/blocks/sequence_objects.h"

namespace kvlathe {

std::vector<RunExtent> SequenceObjects::RunsAt(const SequenceProgress& progress,
                                               int64_t n_tokens) const {
  if (!layout_->seal.has_value() || heads_.empty()) return {};
  if (!layout_->HasRunsOfHeads()) {
    const RunExtent run = heads_.back().RunAt(*layout_, progress.n_prompt, n_tokens);
    if (run.n_blocks == 0) return {};
    return std::vector<RunExtent>(heads_.size(), run);
  }
  if (LastSealPoint(*layout_, n_tokens, progress.n_prompt) != n_tokens) return {};
  std::vector<RunExtent> runs;
  bool is_empty = true;
  for (const HeadTable& head : heads_) {
    runs.push_back(head.RunAt(*layout_, progress.n_prompt, n_tokens));
    is_empty = is_empty && runs.back().n_blocks == 0;
  }
  return is_empty ? std::vector<RunExtent>() : runs;
}

int64_t SealRoomAt(const CacheLayout& layout, const SequenceProgress& progress, int64_t n_tokens,
                   const std::vector<RunExtent>& runs, int first_layer) {
  if (SealsAgainAt(layout, n_tokens, progress.n_prompt)) {
    return ReopenRoomBytes(layout, n_tokens, progress.n_prompt, first_layer);
  }
  if (runs.empty()) return 0;
  return SealRoomBytes(layout, runs, first_layer, progress.released_at);
}

void SequenceObjects::SetRoomAside(const SequenceProgress& progress, int first_layer) {
  const int n_tokens = progress.n_tokens;
  aside_bytes_ = SealRoom(progress, n_tokens, RunsAt(progress, n_tokens), first_layer);
  KVL_CHECK(pool_->SetAside(aside_bytes_));
}

bool SequenceObjects::SharesBlocksOf(const std::vector<RunExtent>& runs, int first_layer) const {
  for (size_t i = static_cast<size_t>(first_layer) * layout_->n_kv_heads; i < runs.size(); ++i) {
    const std::vector<ObjectId>& blocks = heads_[i].blocks;
    const int64_t end =
        std::min<int64_t>(runs[i].first_block + runs[i].n_blocks, std::ssize(blocks));
    for (int64_t b = runs[i].first_block; b < end; ++b) {
      if (!blocks[b].is_null() && pool_->IsShared(blocks[b])) return true;
    }
  }
  return false;
}

// Where blocks are shared, it is as if none of them became free: a reference that goes meanwhile
// only makes more room.
int64_t SequenceObjects::SealRoom(const SequenceProgress& progress, int64_t n_tokens,
                                  const std::vector<RunExtent>& runs, int first_layer) const {
  return SharesBlocksOf(runs, first_layer)
             ? RunObjectBytes(*layout_, runs, first_layer)
             : SealRoomAt(*layout_, progress, n_tokens, runs, first_layer);
}

bool SequenceObjects::SetRoomAsideForShared(const SequenceProgress& progress) {
  const std::vector<RunExtent> runs = RunsAt(progress, progress.n_tokens);
  const int64_t more_bytes = RunObjectBytes(*layout_, runs, 0) - aside_bytes_;
  if (runs.empty() || more_bytes <= 0) return true;
  if (!pool_->SetAside(more_bytes)) return false;
  aside_bytes_ += more_bytes;
  return true;
}

void SequenceObjects::ReturnAside() { pool_->ReturnAside(std::exchange(aside_bytes_, 0)); }

std::optional<std::vector<std::vector<ObjectId>>> SequenceObjects::TakeBlocks(int layer_idx,
                                                                              int64_t n_blocks) {
  std::vector<std::vector<ObjectId>> taken(layout_->n_kv_heads);
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const int64_t n_bytes = BlockObjectBytes(*layout_, layout_->shape(layer_idx, g));
    for (int64_t b = 0; b < n_blocks; ++b) {
      const ObjectId block = pool_->Allocate(ObjectKind::kBlock, n_bytes);
      if (block.is_null()) {
        for (const std::vector<ObjectId>& head : taken) {
          for (const ObjectId& object : head) pool_->Release(object);
        }
        return std::nullopt;
      }
      taken[g].push_back(block);
    }
  }
  return taken;
}

void SequenceObjects::ReplaceBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& blocks,
                                    int n_runs) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = Head(layer_idx, g);
    for (const ObjectId& block : head.blocks) pool_->Release(block);
    for (SealedRun& run : head.runs) ReleaseRecords(pool_, &run);
    head.runs.clear();
    head.SetRunTableSize(RunTableBytes(n_runs), pool_);
    head.blocks.assign(blocks[g].begin(), blocks[g].end());  // no more of them than before
  }
}

std::optional<RunObjects> SequenceObjects::TakeRuns(const SequenceProgress& progress,
                                                    int layer_idx) {
  RunObjects objects;
  bool ok = true;
  const auto take = [&](ObjectKind kind, int64_t n_bytes) -> ObjectId {
    if (n_bytes == 0 || !ok) return {};
    const ObjectId object = pool_->Allocate(kind, n_bytes);
    ok = !object.is_null();
    return object;
  };
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const RunExtent run = Head(layer_idx, g).RunAt(*layout_, progress.n_prompt, progress.n_tokens);
    std::vector<ObjectId>& packed = objects.packed.emplace_back();
    for (const RunExtent& part : RunsByClass(run)) {
      const PackedShape of_part = PackedShapeOf(*layout_, layer_idx, g, part);
      for (int64_t b = 0; b < part.n_blocks; ++b) {
        packed.push_back(take(ObjectKind::kBlock, PackedBlockObjectBytes(of_part)));
      }
    }
    // Classes have no records.
    const PackedShape shape = PackedShapeOf(*layout_, layer_idx, g, run);
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
  DropRuns(objects);
  return std::nullopt;
}

void SequenceObjects::DropRuns(const RunObjects& objects) {
  const auto release = [&](const ObjectId& object) {
    if (!object.is_null()) pool_->Release(object);
  };
  for (const std::vector<ObjectId>& head : objects.packed) std::ranges::for_each(head, release);
  std::ranges::for_each(objects.records, release);
  std::ranges::for_each(objects.layer_records, release);
}

void SequenceObjects::PlaceRunOfHead(const RunExtent& run, int kv_head_idx,
                                     const RunObjects& objects, HeadTable* head) {
  if (run.n_blocks == 0) {
    // Room for it was made while its newest entries had not merged.
    head->SetRunTableSize(RunTableBytes(std::ssize(head->runs)), pool_);
    return;
  }
  for (int64_t b = 0; b < run.n_blocks; ++b) {
    ObjectId& block = head->blocks[run.first_block + b];
    const ObjectId packed = objects.packed[kv_head_idx][b];
    pool_->Release(block.is_null() ? packed : std::exchange(block, packed));
  }
  for (const RunExtent& part : RunsByClass(run)) {
    head->runs.push_back({.first_block = static_cast<int>(part.first_block),
                          .n_blocks = static_cast<int>(part.n_blocks),
                          .is_prompt = part.is_prompt,
                          .is_repaired = part.is_repaired,
                          .entry_class = part.entry_class,
                          .record = objects.records[kv_head_idx],
                          .layer_record = objects.layer_records[kv_head_idx]});
  }
  if (!head->query_gram.is_null()) pool_->Release(std::exchange(head->query_gram, {}));
  // A narrow window may have left the whole run behind before it is sealed.
  const int64_t last_block = run.first_block + run.n_blocks - 1;
  if (head->blocks[last_block].is_null()) ReleaseRecords(pool_, &head->runs.back());
}

void SequenceObjects::PlaceRuns(const SequenceProgress& progress, int layer_idx,
                                const RunObjects& objects) {
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    HeadTable& head = Head(layer_idx, g);
    PlaceRunOfHead(head.RunAt(*layout_, progress.n_prompt, progress.n_tokens), g, objects, &head);
  }
}

bool SequenceObjects::IsShared(const HeadTable& head, const SealedRun& run) const {
  for (int b = run.first_block; b < run.first_block + run.n_blocks; ++b) {
    if (!head.blocks[b].is_null() && pool_->IsShared(head.blocks[b])) return true;
  }
  return false;
}

int64_t SequenceObjects::BytesPressedOff(int run_idx) const {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const SealedRun& run = heads_[i].runs[run_idx];
    if (run.entry_class == EntryClass::kPressed || IsShared(heads_[i], run)) return 0;
    const int layer_idx = static_cast<int>(i) / layout_->n_kv_heads;
    const HeadInRun head =
        HeadInRunOf(*layout_, layer_idx, static_cast<int>(i) % layout_->n_kv_heads);
    const auto blocks = std::span(heads_[i].blocks).subspan(run.first_block, run.n_blocks);
    n_bytes += std::ranges::count_if(blocks, [](const ObjectId& b) { return !b.is_null(); }) *
               kvlathe::BytesPressedOff(*layout_, head, ExtentOf(run));
  }
  return n_bytes;
}

bool SequenceObjects::PressRun(int run_idx) {
  std::vector<BlockPool::Shrinking> blocks;
  for (size_t i = 0; i < heads_.size(); ++i) {
    RunExtent run = ExtentOf(heads_[i].runs[run_idx]);
    run.entry_class = EntryClass::kPressed;
    const int layer_idx = static_cast<int>(i) / layout_->n_kv_heads;
    const PackedShape shape =
        PackedShapeOf(*layout_, layer_idx, static_cast<int>(i) % layout_->n_kv_heads, run);
    for (int64_t b = run.first_block; b < run.first_block + run.n_blocks; ++b) {
      ObjectId& block = heads_[i].blocks[b];  // null: it fell out of the window
      if (!block.is_null()) blocks.push_back({&block, PackedBlockObjectBytes(shape)});
    }
  }
  if (!pool_->ShrinkAll(blocks)) return false;
  for (HeadTable& head : heads_) head.runs[run_idx].entry_class = EntryClass::kPressed;
  return true;
}

}  // namespace kvlathe
