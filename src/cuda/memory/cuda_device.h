// The memory of a GPU as a device: one stretch of it, taken when the machine is made, in which
// regions lie. So an object's place in a table of a kernel takes 4 bytes, and giving a region back
// costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cuda/memory/cuda_stream.h"
#include "machine/device.h"

namespace kvlathe {

class CudaDevice : public Device {
 public:
  // Places of objects have 32 bits.
  static constexpr int64_t kMostBytes = int64_t{0xffffffff} * kDeviceAlignment;
  // Takes n_bytes at once, at most kMostBytes; kResourceExhausted. The stream outlives the device;
  // what it notes of copies is told by its Finish.
  static StatusOr<std::unique_ptr<CudaDevice>> Create(CudaStream* stream, int64_t n_bytes);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  uint32_t Allocate(int64_t n_bytes) override;
  void Free(uint32_t region) override;
  int64_t n_free_bytes() const override { return n_free_; }
  // Memory is never given back, so there is one granule.
  int64_t page_bytes() const override { return int64_t{1} << 40; }
  void Discard(uint32_t region, int64_t offset, int64_t n_bytes) override;
  void Upload(const ObjectPlace& to, std::span<const std::byte> from) override;
  // Waits for all that was asked for before.
  void Download(const ObjectPlace& from, std::span<std::byte> to) override;
  void Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) override;
  void Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) override;

  // Nothing, unless set_marks_forgotten was called.
  void Forget(const ObjectPlace& place, int64_t n_bytes) override;
  // Whether bytes that are forgotten become NaN, for tests.
  void set_marks_forgotten(bool marks) { marks_forgotten_ = marks; }

  CudaStream& stream() const { return stream_; }

  // Addresses on the GPU, for kernels' parameters; null for no object.
  std::byte* base() const { return base_; }
  std::byte* At(const ObjectId& id) const {
    return id.is_null() ? nullptr : base_ + regions_[id.region] + id.offset();
  }
  std::byte* At(const ObjectPlace& place) const {
    return place.is_null() ? nullptr : At(place.object) + place.offset;
  }
  template <typename T>
  T* As(const ObjectPlace& place) const {
    return reinterpret_cast<T*>(At(place));
  }
  // The object begins at base() + kDeviceAlignment times this; kNoPlace for none.
  static constexpr uint32_t kNoPlace = 0xffffffffu;
  uint32_t PlaceOf(const ObjectId& id) const {
    if (id.is_null()) return kNoPlace;
    return static_cast<uint32_t>(regions_[id.region] / kDeviceAlignment) + id.place;
  }

  // Where a region begins, in bytes from base(), and what it holds.
  int64_t OffsetOf(uint32_t region) const { return regions_[region]; }
  int64_t BytesOf(uint32_t region) const { return sizes_[region]; }

  int64_t n_bytes() const { return n_bytes_; }

 private:
  CudaDevice(CudaStream* stream, std::byte* base, int64_t n_bytes)
      : stream_(*stream), base_(base), n_bytes_(n_bytes), n_free_(n_bytes), free_{{0, n_bytes}} {}

  CudaStream& stream_;
  std::byte* base_;
  int64_t n_bytes_;
  int64_t n_free_;
  bool marks_forgotten_ = false;
  std::vector<int64_t> regions_ = {0};  // offsets, by number
  std::vector<int64_t> sizes_ = {0};    // 0: the number is free
  std::vector<uint32_t> free_numbers_;
  std::map<int64_t, int64_t> free_;  // bytes by offset
};

}  // namespace kvlathe
