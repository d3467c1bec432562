// Reads codes of sealed blocks as numbers of 16 bits, a vector of lanes.h at a time.
#pragma once

#include <type_traits>

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/lanes.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kVecBytes = static_cast<int>(sizeof(IntVec));
// A line is 16 tokens of K, or channels of V, in words of pairs.
constexpr int kLineParts = 64 / kVecBytes;

// The numbers of two lines of a group, as words of pairs like those of a plain block.
struct TwoLines {
  IntVec first, second;
};

template <int kBits>
struct CodeGroup {
  static constexpr int kBytes = GroupBytes(kBits);
  static constexpr int kLines = LinesPerGroup(kBits);
  static constexpr int kHalf = kLines / 2;
  static constexpr int kLow = LowBits(kBits);
};

// Reads codes of uniform steps. The number is the code itself, or at 8 bits the code less 128 where
// it is not signed.
template <int kBits>
struct NumberReader : CodeGroup<kBits> {
  using CodeGroup<kBits>::kHalf, CodeGroup<kBits>::kLow;

  IntVec flip;

  KVL_INLINE explicit NumberReader(bool is_signed)
      : flip(SetWords(is_signed ? 0 : static_cast<int16_t>(0x8080))) {}

  // Part `part` of a line of the group.
  KVL_INLINE IntVec Line(const std::byte* group, int line, int part) const {
    const IntVec words = LoadWords(group + part * kVecBytes);
    if constexpr (kBits == 8) {
      // Eight bytes of either line in turn: those of this one become the upper halves of words.
      return ShiftSignedWords(ShuffleBytes(words ^ flip, LoadTable(kTopBytes[line])), 8);
    }
    const IntVec codes = ShiftWords(words, kLow * line) & SetWords((1 << kLow) - 1);
    if constexpr (!HasHighBit(kBits)) return codes;
    uint32_t bits;
    __builtin_memcpy(&bits, group + 64 + 4 * line, sizeof(bits));
    return codes | (SpreadToWords(bits, part * (kVecBytes / 2)) & SetWords(1 << kLow));
  }

  // Of lines `line` and `line` + kHalf, where line < kHalf.
  KVL_INLINE TwoLines Lines(const std::byte* group, int line, int part) const {
    return {Line(group, line, part), Line(group, line + kHalf, part)};
  }

 private:
  static constexpr int8_t kTopBytes[2][16] = {
      {-128, 0, -128, 1, -128, 2, -128, 3, -128, 4, -128, 5, -128, 6, -128, 7},
      {-128, 8, -128, 9, -128, 10, -128, 11, -128, 12, -128, 13, -128, 14, -128, 15}};
};

// Reads codes of a table (code_table.h) as the numbers that they stand for.
template <int kBits>
struct TableReader : CodeGroup<kBits> {
  using CodeGroup<kBits>::kHalf, CodeGroup<kBits>::kLow;

  IntVec numbers;

  KVL_INLINE explicit TableReader(const int8_t* table) : numbers(LoadTable(table)) {}

  KVL_INLINE IntVec Line(const std::byte* group, int line, int part) const {
    const IntVec words = LoadWords(group + part * kVecBytes);
    IntVec codes = ShiftWords(words, kLow * line) & SetWords((1 << kLow) - 1);
    if constexpr (kBits == 3) {
      uint32_t bits;
      __builtin_memcpy(&bits, group + 64 + 4 * line, sizeof(bits));
      codes = codes | (SpreadToWords(bits, part * (kVecBytes / 2)) & SetWords(4));
    }
    // The lower byte of each word is its number; it becomes the upper one, and then the word.
    const IntVec found = ShuffleBytes(numbers, codes);
    return ShiftSignedWords(ShuffleBytes(found, LoadTable(kLowerToUpper)), 8);
  }
  KVL_INLINE TwoLines Lines(const std::byte* group, int line, int part) const {
    return {Line(group, line, part), Line(group, line + kHalf, part)};
  }

 private:
  alignas(16) static constexpr int8_t kLowerToUpper[16] = {-128, 0, -128, 2,  -128, 4,  -128, 6,
                                                           -128, 8, -128, 10, -128, 12, -128, 14};
};

// The windows of codes of unit_codes.h, two lines in a vector of bytes. The words of a group,
// turned by the codes of `line` lines, have the windows of one line lowest in their lower bytes and
// those of the line half a group later in their upper ones. Sorted by that, every 128 bits have
// eight of the one line and then eight of the other. At 8 bits codes lie so already.
template <int kBits>
struct CodePair : CodeGroup<kBits> {
  using CodeGroup<kBits>::kHalf, CodeGroup<kBits>::kLow;

  IntVec places;  // the lower four bits of windows; at 8 bits the codes
  IntVec high;    // below 8 bits: all bits where the window has its highest one

  // Part `part` of lines `line` and `line` + kHalf, where line < kHalf.
  KVL_INLINE CodePair(const std::byte* group, int line, int part) {
    const IntVec words = LoadWords(group + part * kVecBytes);
    if constexpr (kBits == 8) {
      places = words;
    } else {
      const IntVec windows = ShuffleBytes(TurnWords(words, kLow * line), LoadTable(kBytesByLine));
      places = windows & SetWords(0x0f0f);
      if constexpr (HasHighBit(kBits)) {
        const IntVec bits = LoadTwoInts(group + 64 + 4 * line, group + 64 + 4 * (line + kHalf));
        high = SpreadToBytes(ShuffleBytes(bits, LoadWords(kBitsByLine + part * kVecBytes)));
      } else {
        high = EqualBytes(windows & SetWords(0x1010), SetWords(0x1010));
      }
    }
  }

  // The bytes of two tables, of the windows without and with the highest bit.
  KVL_INLINE IntVec Find(IntVec without, IntVec with) const {
    return WhereSet(high, ShuffleBytes(with, places), ShuffleBytes(without, places));
  }

 private:
  // In every 128 bits the lower bytes of all words, then the upper ones.
  alignas(16) static constexpr int8_t kBytesByLine[16] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                          1, 3, 5, 7, 9, 11, 13, 15};
  // Of two words of 32 bits in turn, the byte with the high bit of this code of the first line or,
  // in every second eight, the second; from part 0 on.
  alignas(64) static constexpr int8_t kBitsByLine[64] = {
      0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 1, 1, 1, 1, 1, 1,
      1, 1, 5, 5, 5, 5, 5, 5, 5, 5, 2, 2, 2, 2, 2, 2, 2, 2, 6, 6, 6, 6,
      6, 6, 6, 6, 3, 3, 3, 3, 3, 3, 3, 3, 7, 7, 7, 7, 7, 7, 7, 7};
};

// Reads codes of unit_codes.h as numbers of steps of kUnitNumberStep. One look-up finds the lower
// bytes of the numbers of two lines, another the upper bytes, and interleaving both gives the words
// of either line.
template <int kBits>
struct UnitReader : CodeGroup<kBits> {
  static constexpr int kTables = kBits == 8 ? 0 : 4;

  IntVec tables[kTables + 1];

  // `numbers` is UnitNumbers(kBits), or null at 8 bits.
  KVL_INLINE explicit UnitReader(const int8_t* numbers) {
    Unroll<kTables>([&](auto i) KVL_PART { tables[i.value] = LoadTable(numbers + 16 * i.value); });
  }

  KVL_INLINE TwoLines Lines(const std::byte* group, int line, int part) const {
    const CodePair<kBits> pair(group, line, part);
    if constexpr (kBits == 8) {
      const IntVec codes = pair.places ^ SetWords(static_cast<int16_t>(0x8080));
      return {ShiftSignedWords(MixLowerBytes(IntVec{}, codes), 3),
              ShiftSignedWords(MixUpperBytes(IntVec{}, codes), 3)};
    } else {
      const IntVec lower = pair.Find(tables[0], tables[2]), upper = pair.Find(tables[1], tables[3]);
      return {MixLowerBytes(lower, upper), MixUpperBytes(lower, upper)};
    }
  }
};

// Calls f(reader) with the reader of the side's codes.
template <typename F>
KVL_INLINE void WithReader(const PackedSideView& side, const F& f) {
  if (side.numbers != nullptr) {
    if (side.bits == 2) return f(TableReader<2>(side.numbers));
    if (side.bits == 3) return f(TableReader<3>(side.numbers));
    return f(TableReader<4>(side.numbers));
  }
  switch (side.bits) {
    case 2:
      return f(NumberReader<2>(side.is_symmetric));
    case 3:
      return f(NumberReader<3>(side.is_symmetric));
    case 4:
      return f(NumberReader<4>(side.is_symmetric));
    case 5:
      return f(NumberReader<5>(side.is_symmetric));
    default:
      return f(NumberReader<8>(side.is_symmetric));
  }
}

template <typename F>
KVL_INLINE void WithReader(const CodeSegment& segment, const F& f) {
  switch (segment.bits) {
    case 1:
      return f(UnitReader<1>(segment.numbers));
    case 2:
      return f(UnitReader<2>(segment.numbers));
    case 3:
      return f(UnitReader<3>(segment.numbers));
    case 4:
      return f(UnitReader<4>(segment.numbers));
    case 5:
      return f(UnitReader<5>(segment.numbers));
    default:
      return f(UnitReader<8>(nullptr));
  }
}

// Fetches the lines of a group of codes.
template <typename Reader>
KVL_INLINE void PrefetchGroup(const std::byte* group) {
  PrefetchLine(group);
  if constexpr (Reader::kBytes > 64) PrefetchLine(group + Reader::kBytes - 1);
}

// Calls f(pair, line, part, numbers) with every vector of numbers of `n_channels` channels whose
// codes begin at `codes`: part `part` of a line of K, 16 tokens from 16 `line` on of the pair
// `pair` of channels, or of V, 16 channels from 16 `line` on of the pair `pair` of tokens.
// Meanwhile what lies `ahead` bytes behind the codes is fetched.
template <bool kIsKey, typename Reader, typename F>
KVL_INLINE void ForEachVectorOf(const Reader& reader, const std::byte* codes, int n_channels,
                                int64_t ahead, const F& f) {
  constexpr int kLines = Reader::kLines, kHalf = Reader::kHalf;
  const int columns = n_channels / 16;  // V
  int pair = 0, line = 0;               // of the group's first line
  for (int group = 0; group < 2 * n_channels / kLines; ++group) {
    PrefetchGroup<Reader>(codes + ahead);
    Unroll<kHalf>([&](auto i) KVL_PART {
      Unroll<kLineParts>([&](auto part) KVL_PART {
        const TwoLines lines = reader.Lines(codes, i.value, part.value);
        constexpr int kNear = i.value, kFar = i.value + kHalf;
        if constexpr (kIsKey) {
          f(pair + (line + kNear) / 4, (line + kNear) % 4, part.value, lines.first);
          f(pair + (line + kFar) / 4, (line + kFar) % 4, part.value, lines.second);
        } else {
          f(pair + kNear, line, part.value, lines.first);
          f(pair + kFar, line, part.value, lines.second);
        }
      });
    });
    codes += reader.kBytes;
    if constexpr (kIsKey) {
      line += kLines;
      pair += line / 4, line %= 4;
    } else if (++line == columns) {
      pair += kLines, line = 0;
    }
  }
}

// Calls f(offset, numbers) with every vector of numbers of a side with split bits, where `offset`
// is that of its first number in K or V of a plain block.
template <bool kIsKey, typename F>
KVL_INLINE void ForEachVector(const PackedSideView& side, const std::byte* block, const F& f) {
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    WithReader(segment, [&](const auto& reader) KVL_PART {
      ForEachVectorOf<kIsKey>(
          reader, block + segment.codes, segment.n_channels, 0,
          [&](int pair, int line, int part, IntVec numbers) KVL_PART {
            const int64_t at = kIsKey ? int64_t{kBlockSize} * (segment.first + 2 * pair) + 32 * line
                                      : 2 * (int64_t{pair} * side.rank + segment.first + 16 * line);
            f(at + 2 * kLanes * part, numbers);
          });
    });
  }
}

}  // namespace
}  // namespace kvlathe
