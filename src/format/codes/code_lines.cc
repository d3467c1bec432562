#include "format/codes/code_lines.h"

#include <cstring>

namespace kvlathe {
namespace {

// Of a code of 8 bits: eight codes of either line in turn.
int64_t ByteOffset(const CodePlace& place) {
  return place.group_offset + place.word / 8 * 16 + place.line * 8 + place.word % 8;
}

int64_t WordOffset(const CodePlace& place) { return place.group_offset + 2 * place.word; }

// Of a code of 3 or 5 bits: the word with the high bits of its line.
int64_t HighBitsOffset(const CodePlace& place) { return place.group_offset + 64 + 4 * place.line; }

template <typename T>
T LoadWord(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

uint8_t ReadCode(const std::byte* codes, int bits, const CodePlace& place) {
  if (bits == 8) return static_cast<uint8_t>(codes[ByteOffset(place)]);
  const int low_bits = LowBits(bits);
  const unsigned word = LoadWord<uint16_t>(codes + WordOffset(place));
  unsigned code = word >> (low_bits * place.line) & ((1u << low_bits) - 1);
  if (HasHighBit(bits)) {
    code |= (LoadWord<uint32_t>(codes + HighBitsOffset(place)) >> place.word & 1) << low_bits;
  }
  return static_cast<uint8_t>(code);
}

void WriteCode(std::byte* codes, int bits, const CodePlace& place, uint8_t code) {
  if (bits == 8) {
    codes[ByteOffset(place)] = std::byte{code};
    return;
  }
  const int low_bits = LowBits(bits), shift = low_bits * place.line;
  const unsigned low_mask = (1u << low_bits) - 1;
  const auto word =
      static_cast<uint16_t>((LoadWord<uint16_t>(codes + WordOffset(place)) & ~(low_mask << shift)) |
                            (code & low_mask) << shift);
  std::memcpy(codes + WordOffset(place), &word, sizeof(word));
  if (!HasHighBit(bits)) return;
  const uint32_t high =
      (LoadWord<uint32_t>(codes + HighBitsOffset(place)) & ~(uint32_t{1} << place.word)) |
      static_cast<uint32_t>(code >> low_bits) << place.word;
  std::memcpy(codes + HighBitsOffset(place), &high, sizeof(high));
}

}  // namespace kvlathe
