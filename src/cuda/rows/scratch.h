// Memory of a GPU that a verb needs while it runs. It is used again by the next one, which comes
// behind it in the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/memory/cuda_device.h"

namespace kvlathe {

class Scratch {
 public:
  explicit Scratch(CudaDevice* device) : device_(*device) {}
  ~Scratch() {
    if (region_ != 0) device_.Free(region_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // n_bytes >= 1 whose contents are undefined; null where the device has no memory for them. What
  // was held before is given up.
  std::byte* Hold(int64_t n_bytes) {
    if (n_bytes > n_bytes_) {
      if (region_ != 0) device_.Free(region_);
      region_ = device_.Allocate(n_bytes);
      n_bytes_ = region_ == 0 ? 0 : n_bytes;
    }
    return device_.At(place());
  }
  ObjectPlace place() const { return {{.region = region_}}; }

 private:
  CudaDevice& device_;
  uint32_t region_ = 0;
  int64_t n_bytes_ = 0;
};

}  // namespace kvlathe
