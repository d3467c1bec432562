// This has the sizes of the blocks of packed weights (format/packed_matrix.h), for files that need
// nothing else of them.
#pragma once

#include <cstdint>

namespace kvlathe {

inline constexpr int64_t kOutBlock = 64;  // outputs side by side in packed Bf16 weights
inline constexpr int64_t kInBlock = 32;   // n_in is padded to this

}  // namespace kvlathe
