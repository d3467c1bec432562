// Names memory of the host as places of a CpuDevice, for tests and benchmarks that lay rows out
// themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/memory/cpu_device.h"

namespace kvlathe {

class HostPlaces {
 public:
  // `device` is one of those that do not bite; it outlives what uses the places.
  explicit HostPlaces(CpuDevice* device)
      : region_(device->Adopt(reinterpret_cast<std::byte*>(kDeviceAlignment))) {}

  // No place for null.
  ObjectPlace operator()(const void* address) const {
    if (address == nullptr) return {};
    return {{.region = region_},
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)) - kDeviceAlignment};
  }

 private:
  uint32_t region_;
};

}  // namespace kvlathe
