// Where an object lies in a device's memory, told without an address. The host may keep, compare
// and pass ids; only what runs on the device turns them into addresses.
#pragma once

#include <compare>
#include <cstdint>

namespace kvlathe {

// Objects begin at multiples of this many bytes of their region.
inline constexpr int64_t kDeviceAlignment = 64;

// As wide as an address, so that a table of ids is as large as one of addresses would be.
struct alignas(8) ObjectId {
  uint32_t region = 0;  // of its device (Device::Allocate); 0: there is no object
  uint32_t place = 0;   // in the region, in steps of kDeviceAlignment bytes

  bool is_null() const { return region == 0; }
  int64_t offset() const { return int64_t{place} * kDeviceAlignment; }  // bytes

  friend auto operator<=>(const ObjectId&, const ObjectId&) = default;
};
static_assert(sizeof(ObjectId) == 8);

// A byte of an object. A place without an object, plus any number of bytes, has none either.
struct ObjectPlace {
  ObjectId object;
  int64_t offset = 0;  // bytes from its start

  bool is_null() const { return object.is_null(); }

  friend bool operator==(const ObjectPlace&, const ObjectPlace&) = default;
  friend ObjectPlace operator+(ObjectPlace place, int64_t n_bytes) {
    place.offset += n_bytes;
    return place;
  }
};

}  // namespace kvlathe
