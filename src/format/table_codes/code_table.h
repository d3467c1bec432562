// A table codec is that of a cache whose 4-bit codes stand for 16 fixed numbers. Each group of
// channels of a token has a scale of one byte, which is a power of two: a value is number * unit *
// 2^(byte - 127). Methods of this codec differ in their table.
//
//   block of a head   | codes of K | codes of V | K scales | V scales | repairs
//   scales of a side  [groups of channels][kBlockSize] bytes
//                     | group 0: t0 | t1 | ... | t63 | group 1: t0 | ... |
//   scale byte        | exponent + 127 | as in E8M0: the exponent field of an F32
//
// code_lines.h says where codes lie, and packed_layout.h where repairs do. Sealing writes scale
// bytes from 1 to 254. Byte 0 reads as a scale of 0, and byte 255 as an infinite one.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

inline constexpr int kTableCodes = 16;

struct CodeTable {
  // The number that each code stands for, in any order. Several codes may stand for the same number
  // (0 and -0); sealing then writes the lowest of them. Codes of fewer than 4 bits have the first
  // numbers, and the others repeat these.
  std::array<int8_t, kTableCodes> numbers;
  float unit;  // a power of two: a code stands for numbers[code] * unit, times the scale
};

// What encodes values. A value becomes the nearest number. Where two are equally near it becomes
// the one with the even code, and beyond the last number it becomes that number.
struct TableSteps {
  int n = 0;  // different numbers
  // Of the i-th number in ascending order: its code, the number in units, and the boundary that
  // x / scale / unit exceeds if x becomes this number or a later one. The first has no boundary.
  std::array<float, kTableCodes> codes{}, numbers{}, boundaries{};
  int max_exponent = 0;  // of the largest number times unit: floor(log2)
};

// The numbers in Bf16, repeated as in UnitTable, for look-ups by words.
using TableWords = std::array<uint16_t, 64>;

constexpr TableSteps StepsOf(const CodeTable& table) {
  TableSteps steps;
  for (int number = -128; number < 128; ++number) {
    for (int code = 0; code < kTableCodes; ++code) {
      if (table.numbers[code] != number) continue;
      const int i = steps.n++;
      steps.codes[i] = static_cast<float>(code);
      steps.numbers[i] = static_cast<float>(number);
      if (i > 0) {
        // Halves of whole numbers are exact, and so is the next lower float of one that is not 0.
        float boundary = (steps.numbers[i] + steps.numbers[i - 1]) / 2;
        if (code % 2 == 0) {  // a tie goes up: whatever lies above the float below it
          const auto bits = std::bit_cast<uint32_t>(boundary);
          boundary = std::bit_cast<float>(boundary > 0 ? bits - 1 : bits + 1);
        }
        steps.boundaries[i] = boundary;
      }
      break;
    }
  }
  float largest = 0;
  for (const int8_t number : table.numbers) {
    const float value = static_cast<float>(number < 0 ? -number : number) * table.unit;
    if (value > largest) largest = value;
  }
  steps.max_exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - 127;
  return steps;
}

// Codes of 3 bits are looked up by their lower two: in the first half of the words those without
// the highest bit, and in the second those with it.
constexpr TableWords WordsOf(const CodeTable& table, int bits) {
  TableWords words{};
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t code = bits == 3 ? i % 4 + 4 * (i / 32) : i % kTableCodes;
    const auto number = static_cast<float>(table.numbers[code]);
    words[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
  }
  return words;
}

// A table and what the compiler works out from it.
struct NamedTable : CodeTable {
  constexpr NamedTable(const std::array<int8_t, kTableCodes>& table_numbers, float table_unit,
                       int bits = 4)
      : CodeTable{table_numbers, table_unit}, steps(StepsOf(*this)), words(WordsOf(*this, bits)) {}
  TableSteps steps;
  TableWords words;
};

struct TableCodec {
  const NamedTable* table = nullptr;
  int group = 32;  // channels of a token that share a scale, a multiple of 16
  friend bool operator==(const TableCodec&, const TableCodec&) = default;
};

constexpr CodecFacts FactsOf(const TableCodec& codec) {
  const PackedSide side = {.bits = 4,
                           .sharing = ScaleSharing::kToken,
                           .group = codec.group,
                           .is_symmetric = true,
                           .table = codec.table};
  return {.k = side,
          .v = side,
          .most_channels = kMaxPackedRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

// The scale that a byte stands for.
// TableScaleByte gives the byte of a group whose largest magnitude is `largest`, which is finite
// and not negative. The exponent of the scale is that of `largest` less that of the largest number
// of the table, so `largest` lies within the numbers, or beyond the last one by less than a factor
// of 2 and then saturates. The scale is 1 where all values of the group are 0.
constexpr float TableScale(uint8_t byte) { return std::bit_cast<float>(uint32_t{byte} << 23); }
constexpr uint8_t TableScaleByte(float largest, int max_exponent) {
  if (largest == 0) return 127;
  const int byte = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - max_exponent;
  return static_cast<uint8_t>(byte < 1 ? 1 : byte > 254 ? 254 : byte);
}

}  // namespace kvlathe
