// The objects of a sequence are all that it holds, in the tables of its heads. They are taken from
// the pool and given back here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/head_table.h"
#include "kv/cache_layout.h"
#include "kv/seal/seal_schedule.h"
#include "machine/device.h"

namespace kvlathe {

// The objects into which the runs of a layer are sealed. Those that would have no bytes are null.
struct RunObjects {
  std::vector<std::vector<ObjectId>> packed;  // [n_kv_heads][n_blocks]
  std::vector<ObjectId> records;              // [n_kv_heads]
  // [n_kv_heads]. Heads that share a record have the same id here, with a reference each.
  std::vector<ObjectId> layer_records;
};

// The class does not know when or in which order heads are sealed, pruned or cut: SequenceCache
// does (kv/blocks/sequence_cache.h), and says at each call how far the sequence is.
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
  // The sum of the sizes of the objects that are held.
  KvBytes bytes(const SequenceProgress& progress) const;
  // How many positions the objects of every head have room for.
  int64_t WritablePositions() const;

  // The runs of all heads, [n_layers * n_kv_heads], that end when n_tokens positions are there. The
  // result is empty where no head has one, which most steps find out from one head.
  std::vector<RunExtent> RunsAt(const SequenceProgress& progress, int64_t n_tokens) const;
  // Takes what n_tokens positions, the last of which end `runs`, need beyond what the heads hold,
  // and sets `room_bytes` aside for sealing. When there is no room the error is kResourceExhausted,
  // and nothing was taken.
  Status Grow(const SequenceProgress& progress, int64_t n_tokens,
              const std::vector<RunExtent>& runs, int64_t room_bytes);
  // Writes the positions of new entries, which have no votes yet, into the entry tables of all
  // heads. The layout is one that drops entries.
  void EnterEntries(Range positions);
  // Gives back the blocks and sinks that no position from n_tokens on can see. Those that none from
  // progress.released_at on can see are gone already.
  void ReleaseOutOfWindow(const SequenceProgress& progress, int64_t n_tokens);
  // Says that the head has dropped n_dropped entries so far and that its first n_blocks hold those
  // that are left. The other blocks are given back.
  void SetDropped(size_t head_idx, int64_t n_dropped, int64_t n_blocks);
  // Says how many entries of the prompt each head keeps (HeadTable::n_to_keep).
  void SetToKeep(std::span<const int64_t> n_to_keep) {
    for (size_t i = 0; i < heads_.size(); ++i) heads_[i].n_to_keep = n_to_keep[i];
  }
  // How many blocks each head has, [n_layers * n_kv_heads].
  void CountBlocks(std::vector<int64_t>* n_blocks) const;
  // Gives back all blocks of each head but the first so many, and what tables have for them.
  void ReleaseBlocksBehind(const SequenceProgress& progress, std::span<const int64_t> n_blocks);
  // Resizes the head's table of positions and votes. When the system has no memory for a smaller
  // one, the head keeps the larger one, and bytes() counts that.
  void SetEntryTableSize(size_t head_idx, int64_t n_bytes);
  // Shrinks the blocks of the layer to the layout's shape. False when the system has no memory.
  bool ShrinkBlocks(int layer_idx);
  void Clear();
  // Makes these objects, of which there are none yet, a copy of another sequence's. False when
  // there is no room.
  bool CopyFrom(const SequenceObjects& from);
  // Makes these objects, of which there are none yet, those of another sequence that hold its first
  // n_tokens positions (HeadTable::ShareFrom), ready to be extended if `to_write`. False when there
  // is no room.
  bool ShareFrom(const SequenceObjects& from, int64_t n_tokens, bool to_write);
  // Says of all references whether they are a keeper's (BlockPool::AddKeeper).
  void SetKept(bool is_kept);

  // Keeps of what is set aside the room that sealing the layers from first_layer on needs, and
  // returns the rest.
  void SetRoomAside(const SequenceProgress& progress, int first_layer);
  // The bytes that sealing `runs`, which end at n_tokens, needs in the layers from first_layer on.
  // Blocks that other sequences hold too are not free when they are sealed.
  int64_t SealRoom(const SequenceProgress& progress, int64_t n_tokens,
                   const std::vector<RunExtent>& runs, int first_layer) const;
  // Sets more aside, so that all plain blocks may be shared before they are sealed. False when
  // there is no room.
  bool SetRoomAsideForShared(const SequenceProgress& progress);
  void ReturnAside();

  // Takes plain blocks, [n_kv_heads][n_blocks], which belong to the caller. Nothing when the system
  // has no memory.
  std::optional<std::vector<std::vector<ObjectId>>> TakeBlocks(int layer_idx, int64_t n_blocks);
  // Puts these blocks in the place of all blocks and runs of the layer. Its run tables have room
  // for n_runs then.
  void ReplaceBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& blocks, int n_runs);
  // Takes objects for the runs of the layer's heads, which belong to the caller. Nothing when the
  // system has no memory.
  std::optional<RunObjects> TakeRuns(const SequenceProgress& progress, int layer_idx);
  void DropRuns(const RunObjects& objects);
  // Puts the objects in the place of the plain blocks, which are given back.
  void PlaceRuns(const SequenceProgress& progress, int layer_idx, const RunObjects& objects);

  // How many bytes pressing this run of every head gives back: 0 where it is pressed already, or
  // others hold blocks of it too.
  int64_t BytesPressedOff(int run_idx) const;
  // Makes this run of every head a pressed one and shrinks its blocks. False, and nothing changes,
  // when the system has no memory.
  bool PressRun(int run_idx);

 private:
  HeadTable& Head(int layer_idx, int kv_head_idx) {
    return heads_[static_cast<size_t>(layer_idx) * layout_->n_kv_heads + kv_head_idx];
  }
  bool SharesBlocksOf(const std::vector<RunExtent>& runs, int first_layer) const;
  int64_t MissingBytes(const SequenceProgress& progress, int64_t n_tokens,
                       const std::vector<RunExtent>& runs) const;
  bool AllocateObjects(const SequenceProgress& progress, int64_t n_tokens,
                       std::vector<ObjectId>* objects);
  bool GrowTables(const SequenceProgress& progress, int64_t n_tokens,
                  const std::vector<RunExtent>& runs);
  bool IsShared(const HeadTable& head, const SealedRun& run) const;
  void PlaceRunOfHead(const RunExtent& run, int kv_head_idx, const RunObjects& objects,
                      HeadTable* head);

  const CacheLayout* layout_;
  BlockPool* pool_;
  int64_t aside_bytes_ = 0;  // what the pool keeps for sealing one layer
  bool is_kept_ = false;
  std::vector<HeadTable> heads_;
};

// How many bytes have to be set aside to prune and seal, in the layers from first_layer on, what a
// step to n_tokens ended (`runs`). 0 where nothing is to be done.
int64_t SealRoomAt(const CacheLayout& layout, const SequenceProgress& progress, int64_t n_tokens,
                   const std::vector<RunExtent>& runs, int first_layer);

}  // namespace kvlathe
