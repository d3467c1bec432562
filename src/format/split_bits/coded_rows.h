// A block of coded rows is still being filled and holds 8-bit codes in place of rows
// (SplitBitsCodec::codes_open_rows).
//
//   block of a head   | K: 8 bits | V: 8 bits | scales of tokens: K | V |
//
// With BlockShape::has_one_side there is neither V nor its scales.
// Codes have the places that codes of 8 bits have in a sealed block (codes/code_lines.h). The scale
// of a token is a byte (ScaleOfByte).
#pragma once

#include <cstdint>

#include "format/rows/block_layout.h"

namespace kvlathe {

constexpr int64_t CodedKeyBytes(const BlockShape& s) { return int64_t{kBlockSize} * s.rank_k; }
// Codes of a token on both sides.
constexpr int CodedChannels(const BlockShape& s) {
  return s.rank_k + (s.has_one_side ? 0 : s.rank_v);
}
constexpr int64_t CodedTokenBytes(const BlockShape& s) {
  return CodedChannels(s) + (s.has_one_side ? 1 : 2);
}

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
  return int64_t{kBlockSize} * CodedChannels(s) + token;
}
// Where there are two sides.
constexpr int64_t CodedValueScaleOffset(const BlockShape& s, int token) {
  return CodedKeyScaleOffset(s, token) + kBlockSize;
}

}  // namespace kvlathe
