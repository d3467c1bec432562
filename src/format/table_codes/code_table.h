// Codes of 4 bits that stand for 16 fixed numbers, under power-of-two scales of a byte: a value is
// number * unit * 2^(byte - 127). A method of this codec is its table.
//
//   block of a head   | codes of K | codes of V | K scales | V scales | repairs
//   scales of a side  [groups of channels][kBlockSize] bytes
//                     | group 0: t0 | t1 | ... | t63 | group 1: t0 | ... |
//   scale byte        | exponent + 127 | as in E8M0: the exponent field of an F32
//
// Codes lie as code_lines.h says; repairs as packed_layout.h does. Bytes from 1 to 254 are written.
// Byte 0 reads as a scale of 0, and byte 255 as an infinite one.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "format/codes/code_side.h"

namespace kvlathe {

inline constexpr int kTableCodes = 16;

struct CodeTable {
  // The number of each code, ascending by value apart from the order of codes; several codes may
  // stand for the same number (0 and -0), of which the lowest is written.
  std::array<int8_t, kTableCodes> numbers;
  float unit;  // a power of two: a code stands for numbers[code] * unit, times the scale
};

// How values are encoded: to the nearest number; of two that are equally near to the one with the
// even code; beyond the last number, to it.
struct TableSteps {
  int n = 0;  // different numbers
  // Ascending: the code of the i-th number, the number in units, and what its quotient
  // (x / scale / unit) lies above. The first has no boundary.
  std::array<float, kTableCodes> codes{}, numbers{}, boundaries{};
  int max_exponent = 0;  // of the largest number times unit: floor(log2)
};

// The numbers in Bf16, as look-ups by words read them: repeated as in UnitTable.
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

constexpr TableWords WordsOf(const CodeTable& table) {
  TableWords words{};
  for (size_t i = 0; i < words.size(); ++i) {
    const auto number = static_cast<float>(table.numbers[i % kTableCodes]);
    words[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
  }
  return words;
}

// A table with all that is worked out from it, once, by the compiler.
struct NamedTable : CodeTable {
  constexpr NamedTable(const std::array<int8_t, kTableCodes>& table_numbers, float table_unit)
      : CodeTable{table_numbers, table_unit}, steps(StepsOf(*this)), words(WordsOf(*this)) {}
  TableSteps steps;
  TableWords words;
};

struct TableCodec {
  const NamedTable* table = nullptr;
  int group = 32;  // channels of a token that share a scale, a multiple of 16
  friend bool operator==(const TableCodec&, const TableCodec&) = default;
};

constexpr PackedSide KeySideOf(const TableCodec& codec) {
  return {.bits = 4,
          .sharing = ScaleSharing::kToken,
          .group = codec.group,
          .is_symmetric = true,
          .table = codec.table};
}
constexpr PackedSide ValueSideOf(const TableCodec& codec) { return KeySideOf(codec); }

// The scale of a byte, and the byte of a group whose values reach `largest`: the exponent of the
// largest value less that of the largest number, so that it lies among the numbers or is the
// nearest below what a step more would be. `largest` is finite and not negative; 0: scale 1.
constexpr float TableScale(uint8_t byte) { return std::bit_cast<float>(uint32_t{byte} << 23); }
constexpr uint8_t TableScaleByte(float largest, int max_exponent) {
  if (largest == 0) return 127;
  const int byte = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - max_exponent;
  return static_cast<uint8_t>(byte < 1 ? 1 : byte > 254 ? 254 : byte);
}

}  // namespace kvlathe
