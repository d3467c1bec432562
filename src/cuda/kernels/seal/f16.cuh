// Numbers of scales as sealing rounds them on every machine: to the nearest F16, and to the largest
// one where they are beyond it.
#pragma once

#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

KVL_DEVICE uint32_t BoundedF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kLargest = 0x477fe000;  // 65504
  magnitude = magnitude > kLargest ? kLargest : magnitude;
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + (magnitude >> 13 & 1) + 0xfffu - 0x38000000u) >> 13;
  return (magnitude < 0x38800000u ? small : normal) | (bits >> 16 & 0x8000u);
}

KVL_DEVICE float NumberOfF16(uint32_t bits) {
  const float magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (bits & 0x8000u) << 16);
}

}  // namespace kvlathe::cuda
