// The sizes of the blocks of dense weights (cpu/kernels/linear/dense_weights.h), which kernels need
// alone.
#pragma once

#include <cstdint>

namespace kvlathe {

inline constexpr int64_t kOutBlock = 64;  // outputs side by side in packed Bf16 weights
inline constexpr int64_t kInBlock = 32;   // n_in is padded to this

}  // namespace kvlathe
