// A chunk is one region of the block pool's device, cut into slots of one size. A chunk knows which
// slots are taken and which pages of the region the system has to hold.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/blocks/block_pool.h"
#include "machine/device.h"

namespace kvlathe {

class Chunk {
 public:
  // Makes room for n_slots objects of object_bytes. region() is 0 when the system has no room.
  // `device` outlives the chunk.
  Chunk(Device* device, int64_t object_bytes, int n_slots);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  uint32_t region() const { return region_; }
  int64_t object_bytes() const { return object_bytes_; }
  bool full() const { return n_live_ == n_slots_; }
  bool empty() const { return n_live_ == 0; }
  // Bytes of the pages that an object has occupied since they were last given back.
  int64_t held_bytes() const { return held_bytes_; }

  // Takes the lowest free slot of a chunk that is not full, with one reference. Its pages are held
  // from then on.
  ObjectId Take(ObjectKind kind);
  void AddReference(const ObjectId& object) { ++slots_[SlotOf(object)].n_references; }
  // Takes a reference away. True if it was the last one, and then the slot is free.
  bool Drop(const ObjectId& object);
  uint32_t n_references(const ObjectId& object) const {
    return slots_[SlotOf(object)].n_references;
  }
  void AddKeeper(const ObjectId& object) { ++slots_[SlotOf(object)].n_keepers; }
  void RemoveKeeper(const ObjectId& object) { --slots_[SlotOf(object)].n_keepers; }
  // Whether all references are keepers'.
  bool IsKept(const ObjectId& object) const {
    const Slot& slot = slots_[SlotOf(object)];
    return slot.n_references > 0 && slot.n_references == slot.n_keepers;
  }
  ObjectKind kind(const ObjectId& object) const { return slots_[SlotOf(object)].kind; }

  // Gives the system the held pages on which no live object lies.
  void ReturnFreePages();

  bool queued = false;  // the pool's own mark: the chunk waits in the queue of those to give back

 private:
  struct Slot {
    uint32_t n_references = 0;  // 0: free
    uint32_t n_keepers = 0;     // of these
    ObjectKind kind = ObjectKind::kBlock;
  };
  int SlotOf(const ObjectId& object) const;
  void HoldPagesOf(int slot_idx);

  Device* device_;
  int64_t object_bytes_;
  int n_slots_;
  int n_live_ = 0;
  int first_free_ = 0;  // no slot below it is free
  int64_t mapped_bytes_ = 0;
  int64_t page_bytes_ = 0;  // of the device; a chunk of one object is one page
  int64_t held_bytes_ = 0;
  uint32_t region_ = 0;
  std::vector<Slot> slots_;
  std::vector<bool> held_pages_;
};

}  // namespace kvlathe
