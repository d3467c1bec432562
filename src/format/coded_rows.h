// Where codes lie in a block that is still being filled and holds 8-bit codes in place of rows
// (BlockShape::has_coded_rows). They have the places that codes of 8 bits have in a sealed block
// (codes/code_lines.h), and so have the scales of their tokens (ScaleOfByte), a byte for K and one
// for V, behind all codes.
#pragma once

#include <cstdint>

#include "format/rows/block_layout.h"

namespace kvlathe {

// Offsets in bytes from the start of K and of V.
constexpr int64_t CodedKeyOffset(int token, int r) {
  const int line = r / 2 * 4 + token / 16, word = token % 16 * 2 + r % 2;
  return int64_t{line / 2} * 64 + word / 8 * 16 + line % 2 * 8 + word % 8;
}
constexpr int64_t CodedValueOffset(int rank_v, int token, int r) {
  const int pair = token / 2, word = r % 16 * 2 + token % 2;
  return (int64_t{pair / 2} * (rank_v / 16) + r / 16) * 64 + word / 8 * 16 + pair % 2 * 8 +
         word % 8;
}

// From the start of the block.
constexpr int64_t CodedKeyScaleOffset(const BlockShape& s, int token) {
  return int64_t{kBlockSize} * (s.rank_k + s.rank_v) + token;
}
constexpr int64_t CodedValueScaleOffset(const BlockShape& s, int token) {
  return CodedKeyScaleOffset(s, token) + kBlockSize;
}

}  // namespace kvlathe
