// The host's own memory as a device; new regions hold zeros. Kernels get its addresses from a
// CpuAccess, which stands for a verb that runs; nothing else knows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "machine/device.h"

namespace kvlathe {

class CpuDevice : public Device {
 public:
  CpuDevice();
  ~CpuDevice() override;
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  uint32_t Allocate(int64_t n_bytes) override;
  void Free(uint32_t region) override;
  int64_t page_bytes() const override;
  void Discard(uint32_t region, int64_t offset, int64_t n_bytes) override;
  void Upload(const ObjectPlace& to, std::span<const std::byte> from) override;
  void Download(const ObjectPlace& from, std::span<std::byte> to) override;
  void Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) override;
  void Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) override;
  const std::byte* HostView(const ObjectPlace& place) override;

  // Memory of the caller's as a region, for benchmarks and tests that lay rows out themselves. It
  // begins at a multiple of kDeviceAlignment and outlives the device or the call of Free.
  uint32_t Adopt(std::byte* memory);

 protected:
  struct Region {
    std::byte* base = nullptr;
    int64_t n_bytes = 0;  // of its mapping; 0: not the device's own
  };
  // By number; those without a base are free, and number 0 always is.
  const std::vector<Region>& regions() const { return regions_; }
  // Lets memory that outlives the device, or the next such call, be region `number`, for a device
  // whose regions another numbers. Its own Allocate and Free are not called then.
  void PlaceRegion(uint32_t number, std::byte* memory);

  // n_bytes in whole pages; null when the system has no room.
  virtual std::byte* Map(int64_t n_bytes);
  virtual void Unmap(std::byte* base, int64_t n_bytes);
  // From the first to the second, kernels and the device itself may touch its memory.
  virtual void Open() {}
  virtual void Close() {}

 private:
  friend class CpuAccess;
  uint32_t Enter(const Region& region);

  std::vector<Region> regions_;
  std::set<uint32_t> free_numbers_;  // below regions_.size()
};

// The addresses of a device's objects, for as long as a verb runs. Workers of the verb share it.
class CpuAccess {
 public:
  explicit CpuAccess(CpuDevice& device) : device_(device) { device_.Open(); }
  // `device` is a CpuDevice.
  explicit CpuAccess(Device& device) : CpuAccess(dynamic_cast<CpuDevice&>(device)) {}
  ~CpuAccess() { device_.Close(); }
  CpuAccess(const CpuAccess&) = delete;
  CpuAccess& operator=(const CpuAccess&) = delete;

  // Null for no object.
  std::byte* At(const ObjectId& id) const {
    return id.is_null() ? nullptr : device_.regions_[id.region].base + id.offset();
  }
  std::byte* At(const ObjectPlace& place) const {
    return place.is_null() ? nullptr : At(place.object) + place.offset;
  }
  // The same as an array of numbers.
  template <typename T>
  T* As(const ObjectPlace& place) const {
    return reinterpret_cast<T*>(At(place));
  }
  // Those of a list.
  std::vector<std::byte*> At(std::span<const ObjectId> ids) const;

 private:
  CpuDevice& device_;
};

// What the plans of a batch name by ids, which may be of several devices (nearly always it is one).
// Workers share it once all are open.
class CpuAccesses {
 public:
  // Nothing where it is open already.
  void Open(Device* device);
  const CpuAccess& Of(const Device* device) const;

 private:
  std::vector<std::pair<const Device*, std::unique_ptr<CpuAccess>>> accesses_;
};

}  // namespace kvlathe
