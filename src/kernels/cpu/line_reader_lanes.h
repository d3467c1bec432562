// Codes of sealed blocks as numbers of 16 bits, a vector of lanes.h at a time.
#pragma once

#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/attend_range.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kVecBytes = static_cast<int>(sizeof(IntVec));
// A line is 16 tokens of K, or channels of V, in words of pairs.
constexpr int kLineParts = 64 / kVecBytes;

enum class CodeMeaning { kNumber, kUnit };

// Codes of uniform steps: the code, at 8 bits less 128 unless it is signed. Codes of unit_codes.h:
// in steps of kUnitNumberStep.
template <int kBits, CodeMeaning kMeaning>
struct LineReader {
  static constexpr int kBytes = GroupBytes(kBits);
  static constexpr int kLines = LinesPerGroup(kBits);
  static constexpr int kLow = LowBits(kBits);
  static constexpr bool kLooksUp = kMeaning == CodeMeaning::kUnit && kBits < 8;
  static constexpr int kTables = !kLooksUp || kBits <= 3 ? 1 : kBits == 4 ? 2 : 4;

  IntVec tables[kTables];

  // `numbers` is UnitNumbers(kBits), or null where nothing is looked up.
  KVL_INLINE LineReader(const int8_t* numbers, bool is_signed) {
    if constexpr (kLooksUp) {
      Unroll<kTables>([&](auto i)
                          KVL_PART { tables[i.value] = LoadTable(numbers + 16 * i.value); });
    } else {
      tables[0] = SetWords(is_signed ? 0 : static_cast<int16_t>(0x8080));
    }
  }

  // Numbers of part `part` of a line of the group, words of pairs as in a plain block.
  KVL_INLINE IntVec Line(const std::byte* group, int line, int part) const {
    const IntVec words = LoadWords(group + part * kVecBytes);
    if constexpr (kBits == 8) {
      // Eight bytes of either line in turn: those of this one become the upper halves of words.
      const IntVec tops = ShuffleBytes(words ^ tables[0], LoadTable(kTopBytes[line]));
      return ShiftSignedWords(tops, kMeaning == CodeMeaning::kUnit ? 3 : 8);
    }
    IntVec codes = ShiftWords(words, kLow * line) & SetWords((1 << kLow) - 1);
    if constexpr (!kLooksUp && !HasHighBit(kBits)) return codes;
    IntVec high = codes;
    if constexpr (HasHighBit(kBits)) {
      uint32_t bits;
      __builtin_memcpy(&bits, group + 64 + 4 * line, sizeof(bits));
      high = SpreadToWords(bits, part * (kVecBytes / 2));
      if constexpr (kBits == 3) codes = codes | (high & SetWords(4));
    }
    if constexpr (!kLooksUp) return codes;
    if constexpr (kBits <= 3) {
      return ShuffleBytes(tables[0], AddWords(MultiplyWords(codes, 0x0202), 0x0100));
    } else {
      const IntVec low_places = codes | SetWords(static_cast<int16_t>(0x8000));
      const IntVec high_places = ShiftWordsLeft(codes, 8) | SetWords(0x0080);
      const auto look_up = [&](int i) KVL_PART {
        return ShuffleBytes(tables[i], low_places) | ShuffleBytes(tables[i + 1], high_places);
      };
      if constexpr (kBits == 4) return look_up(0);
      return WhereSet(high, look_up(kTables - 2), look_up(0));
    }
  }

 private:
  static constexpr int8_t kTopBytes[2][16] = {
      {-128, 0, -128, 1, -128, 2, -128, 3, -128, 4, -128, 5, -128, 6, -128, 7},
      {-128, 8, -128, 9, -128, 10, -128, 11, -128, 12, -128, 13, -128, 14, -128, 15}};
};

// f(reader) with the reader of the side's codes.
template <typename F>
KVL_INLINE void WithReader(const PackedSideView& side, const F& f) {
  constexpr CodeMeaning kNumber = CodeMeaning::kNumber;
  switch (side.bits) {
    case 2:
      return f(LineReader<2, kNumber>(nullptr, side.is_symmetric));
    case 3:
      return f(LineReader<3, kNumber>(nullptr, side.is_symmetric));
    case 4:
      return f(LineReader<4, kNumber>(nullptr, side.is_symmetric));
    default:
      return f(LineReader<8, kNumber>(nullptr, side.is_symmetric));
  }
}

template <typename F>
KVL_INLINE void WithReader(const CodeSegment& segment, const F& f) {
  constexpr CodeMeaning kUnit = CodeMeaning::kUnit;
  switch (segment.bits) {
    case 1:
      return f(LineReader<1, kUnit>(segment.numbers, false));
    case 2:
      return f(LineReader<2, kUnit>(segment.numbers, false));
    case 3:
      return f(LineReader<3, kUnit>(segment.numbers, false));
    case 4:
      return f(LineReader<4, kUnit>(segment.numbers, false));
    case 5:
      return f(LineReader<5, kUnit>(segment.numbers, false));
    default:
      return f(LineReader<8, kUnit>(nullptr, false));
  }
}

}  // namespace
}  // namespace kvlathe
