// What --device says.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// The processors of the computer, or one of its GPUs.
struct DeviceChoice {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int number = 0;  // of the GPU

  bool is_cpu() const { return kind == Kind::kCpu; }
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

// "cpu", "cuda", which is "cuda:0", or "cuda:1"; kInvalidArgument for anything else.
StatusOr<DeviceChoice> ParseDevice(std::string_view text);
// As ParseDevice reads it, "cuda:0".
std::string DeviceText(const DeviceChoice& device);

}  // namespace kvlathe
