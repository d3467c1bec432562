// Where a row lies in a 16-bit (or 32-bit) block of one KV head.
//
// A block holds kBlockSize entries:
//   K [rank_k / 2][kBlockSize][2]   pairs of dimensions interleaved across tokens
//   V [kBlockSize / 2][rank_v][2]   pairs of tokens interleaved across dimensions
// K first, V directly behind it. An AVX-512 BF16 dot reads 16 tokens x 2 dimensions of K (one cache
// line) against a broadcast pair of q, and 16 dimensions x 2 tokens of V against a broadcast pair
// of probabilities; the same lines are the rows of an AMX B tile. There is no horizontal sum and no
// padding: ranks are multiples of 16.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe {

inline constexpr int kBlockSize = 64;         // entries in a block
inline constexpr int kMaxPackedRank = 256;    // channels of a sealed row
inline constexpr int kMaxPackedLowrank = 64;  // columns of the low-rank residual

// Bits of the codes of sealed channels where they differ (packed_layout.h): the first channels[0]
// have kSplitBits[0], the next channels[1] kSplitBits[1], and so on.
inline constexpr std::array<int, 6> kSplitBits = {8, 5, 4, 3, 2, 1};
struct BitSplit {
  std::array<int, kSplitBits.size()> channels = {};  // multiples of 16
  // The first of these channels that have an offset and a scale in every block; a multiple of 16.
  int scaled = 0;

  constexpr int n_channels() const {
    int n = 0;
    for (const int c : channels) n += c;
    return n;
  }
  constexpr int bits_per_token() const {
    int n = 0;
    for (size_t i = 0; i < channels.size(); ++i) n += channels[i] * kSplitBits[i];
    return n;
  }
  friend bool operator==(const BitSplit&, const BitSplit&) = default;
};

struct BlockShape {
  int rank_k = 0;                 // multiple of 16
  int rank_v = 0;                 // multiple of 16
  DType row_type = DType::kBf16;  // kBf16, or kF32 when the model computes in F32
  // Of the same block once it is sealed, where the format has it: ranks in all.
  BitSplit k_bits = {}, v_bits = {};
  // Until then: 8-bit codes in place of rows (coded_rows.h), where the format splits bits.
  bool has_coded_rows = false;
  // Numbers of a row of the same block once it is sealed, where the format is rotated.
  int sealed_rank_k = 0, sealed_rank_v = 0;  // multiples of 16

  // Of a number of a row in its block.
  constexpr int64_t element_bytes() const { return has_coded_rows ? 1 : SizeOf(row_type); }

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

constexpr int64_t KeyBytes(const BlockShape& s) {
  return int64_t{kBlockSize} * s.rank_k * s.element_bytes();
}
constexpr int64_t BlockBytes(const BlockShape& s) {
  return int64_t{kBlockSize} * (s.rank_k + s.rank_v) * s.element_bytes();
}

// Element offsets from the start of K and of V, where rows are not coded.
constexpr int64_t KeyOffset(int token, int r) {
  return (int64_t{r / 2} * kBlockSize + token) * 2 + r % 2;
}
constexpr int64_t ValueOffset(const BlockShape& s, int token, int r) {
  return (int64_t{token / 2} * s.rank_v + r) * 2 + token % 2;
}

}  // namespace kvlathe
