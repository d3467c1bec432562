// All that a sequence holds: the tables of its heads, and taking their objects from the pool and
// giving them back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "device/device.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/head_table.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {

// What the runs of a layer are sealed into; null where they would have no bytes.
struct RunObjects {
  std::vector<std::vector<ObjectId>> packed;  // [n_kv_heads][n_blocks]
  std::vector<ObjectId> records;              // [n_kv_heads]
  // [n_kv_heads], the same for the heads that share it, with a reference each.
  std::vector<ObjectId> layer_records;
};

// It knows neither when a head is to be sealed, pruned or cut nor in which order
// (kv/blocks/sequence_cache.h does); what it has to know of lengths is told at each call.
class SequenceObjects {
 public:
  // `layout` and `pool` outlive this.
  SequenceObjects(const CacheLayout* layout, BlockPool* pool);
  // Gives everything back.
  ~SequenceObjects() { Clear(); }
  SequenceObjects(const SequenceObjects&) = delete;
  SequenceObjects& operator=(const SequenceObjects&) = delete;

  Device& device() const { return pool_->device(); }
  BlockPool* pool() const { return pool_; }
  std::span<const HeadTable> heads() const { return heads_; }  // [n_layers * n_kv_heads]
  // Summed over the sizes of the objects held.
  KvBytes bytes(const SequenceProgress& progress) const;
  // Positions that the objects of every head hold.
  int64_t WritablePositions() const;

  // The runs of all heads, [n_layers * n_kv_heads], that end where n_tokens positions are there;
  // none where no head has one. Costs as much as one head's at most steps.
  std::vector<RunExtent> RunsAt(const SequenceProgress& progress, int64_t n_tokens) const;
  // Takes what n_tokens positions, the last of which end `runs`, need beyond what the heads hold,
  // and sets `room_bytes` aside for sealing: all or nothing. kResourceExhausted without room.
  Status Grow(const SequenceProgress& progress, int64_t n_tokens,
              const std::vector<RunExtent>& runs, int64_t room_bytes);
  // Positions of new entries, in the tables of all heads, which drop entries; without votes yet.
  void EnterEntries(Range positions);
  // The blocks that n_tokens leaves out of sight, of which those that progress.released_at left
  // are gone already.
  void ReleaseOutOfWindow(const SequenceProgress& progress, int64_t n_tokens);
  // The head has dropped so many entries so far, and its first n_blocks hold those that are left.
  void SetDropped(size_t head_idx, int64_t n_dropped, int64_t n_blocks);
  // A system without memory for a smaller table leaves the large one, and bytes() says so.
  void SetEntryTableSize(size_t head_idx, int64_t n_bytes);
  // Blocks of the layer get the layout's shape. False when the system has no memory.
  bool ShrinkBlocks(int layer_idx);
  void Clear();
  // Makes this one, which is empty, hold the same bytes as another. False without room.
  bool CopyFrom(const SequenceObjects& from);

  // Keeps room for sealing the layers from first_layer on, part of what was set aside for the layer
  // before as well.
  void SetRoomAside(const SequenceProgress& progress, int first_layer);
  void ReturnAside();

  // Plain blocks, [n_kv_heads][n_blocks], that belong to the caller; nothing when the system has no
  // memory.
  std::optional<std::vector<std::vector<ObjectId>>> TakeBlocks(int layer_idx, int64_t n_blocks);
  // These take the place of all blocks and runs of the layer, whose run tables have room for n_runs
  // then.
  void ReplaceBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& blocks, int n_runs);
  // Objects for the runs of the layer's heads, that belong to the caller; nothing when the system
  // has no memory.
  std::optional<RunObjects> TakeRuns(const SequenceProgress& progress, int layer_idx);
  void DropRuns(const RunObjects& objects);
  // They take the place of the plain blocks, which go back.
  void PlaceRuns(const SequenceProgress& progress, int layer_idx, const RunObjects& objects);

 private:
  HeadTable& Head(int layer_idx, int kv_head_idx) {
    return heads_[static_cast<size_t>(layer_idx) * layout_->n_kv_heads + kv_head_idx];
  }
  int64_t MissingBytes(const SequenceProgress& progress, int64_t n_tokens,
                       const std::vector<RunExtent>& runs) const;
  bool AllocateObjects(const SequenceProgress& progress, int64_t n_tokens,
                       std::vector<ObjectId>* objects);
  bool GrowTables(const SequenceProgress& progress, int64_t n_tokens,
                  const std::vector<RunExtent>& runs);
  void PlaceRunOfHead(const RunExtent& run, int kv_head_idx, const RunObjects& objects,
                      HeadTable* head);

  const CacheLayout* layout_;
  BlockPool* pool_;
  int64_t aside_bytes_ = 0;  // of the pool, for sealing one layer
  std::vector<HeadTable> heads_;
};

// To prune and seal in layers from first_layer on what a step to n_tokens ended, `runs`; 0 where
// nothing is to be done.
int64_t SealRoomAt(const CacheLayout& layout, const SequenceProgress& progress, int64_t n_tokens,
                   const std::vector<RunExtent>& runs, int first_layer);

}  // namespace kvlathe
