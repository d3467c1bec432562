// Codes of a fixed width lie in lines. All codecs that have codes share this order.
//
// Codes keep the lines of a plain block (rows/block_layout.h): a line is 32 codes, 16 tokens x 2
// dimensions of K or 16 dimensions x 2 tokens of V. Lines are packed in groups of
// LinesPerGroup(bits), so that one load and a few shifts give whole lines:
//   bits 2, 4  64 bytes, 32 words of 16 bits; word w holds in its bits [bits * i, bits * (i + 1))
//              code w of line i of the group
//   bits 3, 5  the same with the low 2 or 4 bits of each code, then a word of 32 bits per line
//              whose bit w is the high bit of its code w
//   bits 8     64 bytes: codes 0-7 of line 0, 0-7 of line 1, 8-15 of line 0, 8-15 of line 1, ...
//   bits 1     64 bytes, as with 2 and 4 bits
// A group of codes of 4 bits, four lines:
//
//   word 0: | line 3 | line 2 | line 1 | line 0 |   ...   word 31: | line 3 | ... | line 0 |
//             bit 15                     bit 0
//
// In K the numbers of dimension pair p of a token are in line 4 p + token / 16, and a group is
// consecutive lines. In V a group is consecutive token pairs of the same 16 dimensions. The groups
// of all dimensions follow each other, and behind them lie those of the next token pairs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"

namespace kvlathe {

// LowBits is how many bits of a code lie in the words of 16 bits. The highest bit of codes of 3 and
// of 5 bits lies apart.
constexpr bool HasHighBit(int bits) { return bits == 3 || bits == 5; }
constexpr int LowBits(int bits) { return HasHighBit(bits) ? bits - 1 : bits; }
constexpr int LinesPerGroup(int bits) { return 16 / LowBits(bits); }
constexpr int GroupBytes(int bits) { return 64 + (HasHighBit(bits) ? 4 * LinesPerGroup(bits) : 0); }
constexpr int64_t CodeBytes(int bits, int rank) { return int64_t{kBlockSize} * rank * bits / 8; }

// The line of (token, channel) in a plain block, and the number of its code in that line.
struct CodePlace {
  int64_t group_offset;  // bytes from the start of the side's codes
  int line;              // in the group
  int word;              // 0-31
};
constexpr CodePlace PlaceInGroup(int bits, int64_t group_idx, int line, int word) {
  return {group_idx * GroupBytes(bits), line, word};
}
constexpr CodePlace KeyCodePlace(int bits, int token, int channel) {
  const int n = LinesPerGroup(bits), line = channel / 2 * 4 + token / 16;
  return PlaceInGroup(bits, line / n, line % n, token % 16 * 2 + channel % 2);
}
constexpr CodePlace ValueCodePlace(int bits, int rank_v, int token, int channel) {
  const int n = LinesPerGroup(bits), pair = token / 2;
  return PlaceInGroup(bits, int64_t{pair / n} * (rank_v / 16) + channel / 16, pair % n,
                      channel % 16 * 2 + token % 2);
}

// Reads and writes one code; `codes` is the start of the side's codes.
uint8_t ReadCode(const std::byte* codes, int bits, const CodePlace& place);
void WriteCode(std::byte* codes, int bits, const CodePlace& place, uint8_t code);

}  // namespace kvlathe
