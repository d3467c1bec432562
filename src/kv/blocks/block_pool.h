// All memory of the KV cache comes from the block pool. It hands out objects in the memory of a
// device under one budget of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "kv/blocks/cache_journal.h"
#include "machine/device.h"

namespace kvlathe {

enum class ObjectKind {
  kBlock,        // rows of kBlockSize entries of one KV head (or its sink rows)
  kRunRecord,    // what a run shares, per layer, KV head and run
  kLayerRecord,  // what the heads of a layer share, per layer and run
  kTable,        // the lists of blocks, runs and entries of one KV head of one sequence
};
inline constexpr int kNumObjectKinds = 4;

struct PoolUsage {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;  // live objects
  // Pages that objects occupy or have occupied and still hold, and host tables.
  int64_t reserved_bytes = 0;
  int64_t peak_bytes = 0;  // the most that used_bytes has been
  int64_t used_by_kind[kNumObjectKinds] = {};
  int64_t kept_bytes = 0;  // of used_bytes: what nobody but a keeper holds (BlockPool::AddKeeper)

  // What would be in use if all keepers let go.
  int64_t needed_bytes() const { return used_bytes - kept_bytes; }
};

// Objects have a multiple of 64 bytes, are aligned to 64 bytes and are counted by references. They
// are known by their ids; only the device reaches their bytes (machine/device.h). Objects of one
// size lie in chunks of at most 1 MiB, or one to a chunk if they are larger. Empty chunks, and the
// free pages of the others, go back to the system as soon as reserved_bytes - used_bytes passes the
// larger of 4 MiB and 1/16 of used_bytes. A page that a live object shares with freed neighbours
// stays, so the bound is exact for objects of whole pages and holds for smaller ones that are freed
// in the order of their sequences.
// Allocate, AddReference and Release cost O(log n_chunks). The pool is not thread-safe: the
// scheduler is its only caller.
class BlockPool {
 public:
  // The objects lie in `device`, the memory of a machine, which outlives the pool.
  BlockPool(int64_t budget_bytes, Device* device);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  Device& device() const;

  // Returns an object of n_bytes >= 1, rounded up to a multiple of 64, with one reference and
  // undefined contents. Null when the budget or the system has no room.
  ObjectId Allocate(ObjectKind kind, int64_t n_bytes);
  // Moves an object with one reference to another size and keeps what fits of its contents. The
  // budget and the peak count the difference only. Null, and the object unchanged, when there is no
  // room.
  ObjectId Resize(const ObjectId& object, int64_t n_bytes);
  // Does the same to all of these, none of which grows, or to none: false when the system has no
  // room for what they become beside what they are. The budget needs none.
  struct Shrinking {
    ObjectId* object;
    int64_t n_bytes;
  };
  bool ShrinkAll(std::span<const Shrinking> objects);
  // Returns another object of the same kind, size and contents; null when there is no room.
  ObjectId CopyOf(const ObjectId& object);
  void AddReference(const ObjectId& object);
  // Whether the object has more references than one.
  bool IsShared(const ObjectId& object) const;
  // Says that one of the references is a keeper's: of somebody who can do without the object and
  // lets it go when memory is short. Each is taken back before its reference is.
  void AddKeeper(const ObjectId& object);
  void RemoveKeeper(const ObjectId& object);
  // Takes a reference away. With the last one the object goes back to its chunk.
  void Release(const ObjectId& object);

  // Counts the tables of ids that a sequence keeps in host memory, which the budget covers as well:
  // `difference` bytes more, or fewer if it is negative. False, and nothing changes, when the
  // budget has no room for more.
  bool CountHostTables(int64_t difference);
  // Says that keepers hold so many more bytes of these tables, or fewer if it is negative.
  void CountKeptTables(int64_t difference);

  // Keeps n_bytes of the budget for the caller until it gives them back: nothing else is allocated
  // from them. False when there is no room.
  bool SetAside(int64_t n_bytes);
  void ReturnAside(int64_t n_bytes);

  // Says that another machine, whose budget is the same, holds so many bytes more for its parts of
  // the same caches; the budget is as much smaller here until this is said again.
  void SetMoreElsewhere(int64_t n_bytes);
  // The journal of the device, null where there is none, and the number of the pool there.
  CacheJournal* journal() const;
  int64_t number() const;

  // Whether n more bytes of live objects fit the budget.
  bool HasRoomFor(int64_t n_bytes) const;
  PoolUsage usage() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
