// A plain block holds the rows of one KV head in 16 bits (or 32) each.
//
// It has kBlockSize entries:
//   K [rank_k / 2][kBlockSize][2]   pairs of dimensions interleaved across tokens
//   V [kBlockSize / 2][rank_v][2]   pairs of tokens interleaved across dimensions
//
//   K, dimensions 0 and 1   | t0 d0 | t0 d1 | t1 d0 | t1 d1 | ... | t63 d0 | t63 d1 |
//      dimensions 2 and 3   | t0 d2 | t0 d3 | t1 d2 | t1 d3 | ... | t63 d2 | t63 d3 |
//      ...
//   V, tokens 0 and 1       | t0 d0 | t1 d0 | t0 d1 | t1 d1 | ... up to dimension rank_v - 1
//      tokens 2 and 3       | t2 d0 | t3 d0 | t2 d1 | t3 d1 | ...
//      ...
//
// V lies directly behind K. An AVX-512 BF16 dot reads 16 tokens x 2 dimensions of K (one cache
// line) against a broadcast pair of q, and 16 dimensions x 2 tokens of V against a broadcast pair
// of probabilities; the same lines are the rows of an AMX B tile. There is no horizontal sum and no
// padding: ranks are multiples of 16.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace kvlathe {

inline constexpr int kBlockSize = 64;         // entries in a block
inline constexpr int kMaxRowRank = 512;       // channels of a row: plain, coded, or of split bits
inline constexpr int kMaxPackedRank = 256;    // of a row that another codec seals
inline constexpr int kMaxPackedLowrank = 64;  // columns of the low-rank residual

// The rows of one KV head. What a codec keeps of a head is HeadStorage (packed_layout.h).
struct BlockShape {
  int rank_k = 0;                 // multiple of 16
  int rank_v = 0;                 // multiple of 16
  DType row_type = DType::kBf16;  // kBf16, or kF32 when the model computes in F32
  // How many numbers the values of sinks have; 0: rank_v, like all others. The first rank_v of them
  // are in the basis of the others.
  int sink_rank_v = 0;
  // Whether a row holds a key and its value together, as rows of K, and what stands for V is read
  // from them: then rank_v is rank_k, and blocks of codes have no side of V. Plain blocks of such
  // rows are not kept.
  bool has_one_side = false;

  constexpr int sink_value_width() const { return sink_rank_v > 0 ? sink_rank_v : rank_v; }

  // Bytes of one number of a row.
  constexpr int64_t element_bytes() const { return SizeOf(row_type); }

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

constexpr int64_t KeyBytes(const BlockShape& s) {
  return int64_t{kBlockSize} * s.rank_k * s.element_bytes();
}
constexpr int64_t TokenBytes(const BlockShape& s) {
  return (s.rank_k + s.rank_v) * s.element_bytes();
}
constexpr int64_t BlockBytes(const BlockShape& s) { return kBlockSize * TokenBytes(s); }

// Element offsets from the start of K and of V.
constexpr int64_t KeyOffset(int token, int r) {
  return (int64_t{r / 2} * kBlockSize + token) * 2 + r % 2;
}
constexpr int64_t ValueOffset(const BlockShape& s, int token, int r) {
  return (int64_t{token / 2} * s.rank_v + r) * 2 + token % 2;
}

}  // namespace kvlathe
