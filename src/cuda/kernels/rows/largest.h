// The largest numbers of rows on a GPU, as sampling wants them of logits.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

namespace kvlathe::cuda {

// A number and its place in one word, whose order is: larger numbers first, equal ones by place.
// Unsigned words order as floats do once negative ones are turned round.
struct RankedNumber {
  static constexpr uint64_t Of(float value, int32_t place) {
    const uint32_t bits = std::bit_cast<uint32_t>(value == 0 ? 0.0f : value);  // -0 is 0
    const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(place);
  }
  static constexpr float Value(uint64_t ranked) {
    const auto ordered = static_cast<uint32_t>(ranked >> 32);
    return std::bit_cast<float>(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
  }
  static constexpr int32_t Place(uint64_t ranked) {
    return static_cast<int32_t>(~static_cast<uint32_t>(ranked));
  }
};

// How many numbers are put in order at a time, and how many of them stay.
inline constexpr int kSortedTogether = 4096;
inline constexpr int kLargest = 64;

struct LargestParams {
  const float* rows = nullptr;  // [n_rows, n_dims]
  int n_rows = 0;
  int n_dims = 0;
  uint64_t* of_parts = nullptr;    // [n_rows, LargestParts(n_dims), kLargest], for the kernels
  uint64_t* largest = nullptr;     // [n_rows, kLargest], falling; 0 where a row has fewer
  uint32_t* not_finite = nullptr;  // [n_rows], zeros; not 0 then where a number is not finite
};

constexpr int LargestParts(int n_dims) { return (n_dims + kSortedTogether - 1) / kSortedTogether; }

void FindLargest(cudaStream_t stream, const LargestParams& params);

}  // namespace kvlathe::cuda
