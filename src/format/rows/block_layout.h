// The plain block: where a row lies in a 16-bit (or 32-bit) block of one KV head.
//
// A block holds kBlockSize entries:
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

#include "format/split_bits/bit_split.h"
#include "tensor/dtype.h"

namespace kvlathe {

inline constexpr int kBlockSize = 64;         // entries in a block
inline constexpr int kMaxRowRank = 512;       // channels of a row: plain, coded, or of split bits
inline constexpr int kMaxPackedRank = 256;    // of a row that another codec seals
inline constexpr int kMaxPackedLowrank = 64;  // columns of the low-rank residual

struct BlockShape {
  int rank_k = 0;                 // multiple of 16
  int rank_v = 0;                 // multiple of 16
  DType row_type = DType::kBf16;  // kBf16, or kF32 when the model computes in F32
  // How many bits the channels have once the block is sealed, where the format splits bits. Without
  // classes of entries they are rank_k and rank_v channels; with classes these are those of the
  // class that has most, and the others have codes of the first channels only.
  BitSplit k_bits = {}, v_bits = {};
  // Whether the block holds 8-bit codes in place of rows until it is sealed (coded_rows.h). Only a
  // format that splits bits has that.
  bool has_coded_rows = false;
  // How many numbers a row has once the block is sealed, where the format is rotated; 0 elsewhere.
  int sealed_rank_k = 0, sealed_rank_v = 0;  // multiples of 16
  // How many numbers the values of sinks have; 0: rank_v, like all others. The first rank_v of them
  // are in the basis of the others.
  int sink_rank_v = 0;
  // The bits of the entries that are not of the middle class (EntryClass); empty without classes.
  EntryBits most_attended = {}, least_attended = {};

  constexpr int sink_value_width() const { return sink_rank_v > 0 ? sink_rank_v : rank_v; }

  // Bytes of one number of a row.
  constexpr int64_t element_bytes() const { return has_coded_rows ? 1 : SizeOf(row_type); }

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

// The shape of blocks that are sealed for entries of a class.
constexpr BlockShape ShapeOfClass(BlockShape shape, EntryClass entry_class) {
  if (entry_class == EntryClass::kMiddle) return shape;
  const EntryBits& bits =
      entry_class == EntryClass::kMost ? shape.most_attended : shape.least_attended;
  shape.k_bits = bits.k;
  shape.v_bits = bits.v;
  return shape;
}

constexpr int64_t KeyBytes(const BlockShape& s) {
  return int64_t{kBlockSize} * s.rank_k * s.element_bytes();
}
// Coded rows have a scale of a byte each for K and for V behind them.
constexpr int64_t TokenBytes(const BlockShape& s) {
  return (s.rank_k + s.rank_v) * s.element_bytes() + (s.has_coded_rows ? 2 : 0);
}
constexpr int64_t BlockBytes(const BlockShape& s) { return kBlockSize * TokenBytes(s); }

// Element offsets from the start of K and of V, where rows are not coded.
constexpr int64_t KeyOffset(int token, int r) {
  return (int64_t{r / 2} * kBlockSize + token) * 2 + r % 2;
}
constexpr int64_t ValueOffset(const BlockShape& s, int token, int r) {
  return (int64_t{token / 2} * s.rank_v + r) * 2 + token % 2;
}

}  // namespace kvlathe
