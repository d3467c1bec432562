#include "kv/blocks/chunk.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {

Chunk::Chunk(Device* device, int64_t object_bytes, int n_slots)
    : device_(device), object_bytes_(object_bytes), n_slots_(n_slots) {
  region_ = device->Allocate(object_bytes * n_slots);
  if (region_ == 0) return;
  // Of a device that gives nothing back, one page is all of the region.
  const int64_t region_bytes = RoundUp(object_bytes * n_slots, kDeviceAlignment);
  const int64_t granule = std::min(device->page_bytes(), region_bytes);
  mapped_bytes_ = RoundUp(region_bytes, granule);
  slots_.resize(n_slots);
  page_bytes_ = n_slots == 1 ? mapped_bytes_ : granule;
  held_pages_.resize(mapped_bytes_ / page_bytes_);
}

Chunk::~Chunk() {
  if (region_ != 0) device_->Free(region_);
}

int Chunk::SlotOf(const ObjectId& object) const {
  const int64_t offset = object.offset();
  KVL_CHECK(object.region == region_ && offset % object_bytes_ == 0 &&
            offset / object_bytes_ < n_slots_);
  const int slot_idx = static_cast<int>(offset / object_bytes_);
  KVL_CHECK_GT(slots_[slot_idx].n_references, 0u);
  return slot_idx;
}

void Chunk::HoldPagesOf(int slot_idx) {
  const int64_t begin = slot_idx * object_bytes_ / page_bytes_;
  const int64_t last = ((slot_idx + 1) * object_bytes_ - 1) / page_bytes_;
  for (int64_t page = begin; page <= last; ++page) {
    if (held_pages_[page]) continue;
    held_pages_[page] = true;
    held_bytes_ += page_bytes_;
  }
}

ObjectId Chunk::Take(ObjectKind kind) {
  while (slots_[first_free_].n_references != 0) ++first_free_;
  const int slot_idx = first_free_++;
  slots_[slot_idx] = {.n_references = 1, .kind = kind};
  ++n_live_;
  HoldPagesOf(slot_idx);
  return {region_, static_cast<uint32_t>(slot_idx * object_bytes_ / kDeviceAlignment)};
}

bool Chunk::Drop(const ObjectId& object) {
  const int slot_idx = SlotOf(object);
  if (--slots_[slot_idx].n_references != 0) return false;
  --n_live_;
  if (slot_idx < first_free_) first_free_ = slot_idx;
  return true;
}

void Chunk::ReturnFreePages() {
  std::vector<bool> keep(held_pages_.size());
  for (int slot_idx = 0; slot_idx < n_slots_; ++slot_idx) {
    if (slots_[slot_idx].n_references == 0) continue;
    const int64_t last = ((slot_idx + 1) * object_bytes_ - 1) / page_bytes_;
    for (int64_t page = slot_idx * object_bytes_ / page_bytes_; page <= last; ++page) {
      keep[page] = true;
    }
  }
  const auto n_pages = static_cast<int64_t>(keep.size());
  for (int64_t begin = 0; begin < n_pages; ++begin) {
    int64_t end = begin;
    while (end < n_pages && held_pages_[end] && !keep[end]) held_pages_[end++] = false;
    if (end == begin) continue;
    device_->Discard(region_, begin * page_bytes_, (end - begin) * page_bytes_);
    held_bytes_ -= (end - begin) * page_bytes_;
    begin = end;  // page `end` is held by a live object, or not held at all
  }
}

}  // namespace kvlathe
