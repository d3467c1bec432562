// Blocks as operands of matrix products: a reader makes the A registers of mma.m16n8k16 from the
// words of a block, whichever its format.
//
// A tile of a side is 16 channels of all 64 entries of a block. It is four products deep, and a
// lane with g = lane / 4 and i = lane % 4 holds of product n
//   K: a[0] entry 16 n + 2 g, channels 4 i, 4 i + 1        a[1] entry 16 n + 2 g + 1, the same
//      a[2] entry 16 n + 2 g, channels 4 i + 2, 4 i + 3    a[3] entry 16 n + 2 g + 1, the same
//   V: a[0] channel 2 g, entries of pair 8 i + n           a[1] channel 2 g + 1, the same
//      a[2] channel 2 g, entries of pair 8 i + 4 + n       a[3] channel 2 g + 1, the same
// So scores lie as [16 entries][8 rows], outputs as [16 channels][8 rows], and both sides are read
// by the same words: those of `slot` s (a[2 s], a[2 s + 1]) lie side by side. Rows of queries and
// probabilities are B operands, which lanes read from rows in shared memory: of K channels 4 i to
// 4 i + 3 of row g, of V entries 16 i to 16 i + 15 of row g, 8 bytes and 32 bytes at once.
//
// Plain rows are Bf16. Codes become F16, which all of them are exactly: numbers n as n 2^-24, whose
// bits are n itself, or 2^kRaised of it; unit codes as what they stand for.
#pragma once

#include "cuda/simt/simt.h"
#include "format/codes/code_lines.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe::cuda {

using simt::Words2;
using simt::Words4;

// What numbers of codes are multiplied with to count 1.
inline constexpr float kNumberUnit = 16777216.0f;

using Tile = uint32_t[4][4];

// Where the words of a tile lie for a lane: those of slot 1 are slot_step bytes behind those of
// slot 0, and where a slot has several groups, these are group_step apart.
struct TileAt {
  const std::byte* words = nullptr;
  const std::byte* high = nullptr;  // the high bits of slot 0's group, if they lie apart
  int slot_step = 0;
  int group_step = 0;
};

// Codes of kBits.
template <int kBits>
struct CodeReader {
  static constexpr bool kHasHigh = HasHighBit(kBits);
  static constexpr int kLow = LowBits(kBits);
  static constexpr int kGroup = GroupBytes(kBits);
  // Bytes from a tile to the next one.
  static constexpr int kKeyStep = 128 * kBits;
  static constexpr int kValueStep = kGroup;

  // `codes`: those of the segment, whose V has n_tiles.
  KVL_DEVICE static TileAt KeyTile(const std::byte* codes, int lane) {
    const int g = lane / 4, i = lane % 4;
    const std::byte* group = codes;
    TileAt at;
    if constexpr (kBits == 8) {
      group += i * 4 * kGroup;
      at.words = group + g / 2 * 16 + g % 2 * 4;
      at.slot_step = 2 * kGroup;
      at.group_step = kGroup;
    } else if constexpr (kLow == 4) {
      group += i * 2 * kGroup;
      at.words = group + g * 8;
      at.slot_step = kGroup;
    } else if constexpr (kLow == 2) {
      group += i * kGroup;
      at.words = group + g * 8;
    } else {
      group += i / 2 * kGroup;
      at.words = group + g * 8;
    }
    at.high = group + 64;
    return at;
  }
  KVL_DEVICE static TileAt ValueTile(const std::byte* codes, int n_tiles, int lane) {
    const int g = lane / 4, i = lane % 4, row = n_tiles * kGroup;
    const std::byte* group = codes;
    TileAt at;
    if constexpr (kBits == 8) {
      group += i * 4 * row;
      at.words = group + g / 2 * 16 + g % 2 * 4;
      at.slot_step = 2 * row;
      at.group_step = row;
    } else if constexpr (kLow == 4) {
      group += i * 2 * row;
      at.words = group + g * 8;
      at.slot_step = row;
    } else if constexpr (kLow == 2) {
      group += i * row;
      at.words = group + g * 8;
    } else {
      group += i / 2 * row;
      at.words = group + g * 8;
    }
    at.high = group + 64;
    return at;
  }

  // The words of a tile as they lie in memory.
  struct Words {
    uint32_t low[kBits == 8 ? 8 : kLow == 4 ? 4 : 2];
    uint32_t high[kHasHigh ? 8 : 1];
  };
  KVL_DEVICE static void Load(const TileAt& at, uint32_t offset, Words* words) {
    if constexpr (kBits == 8) {
#pragma unroll
      for (int w = 0; w < 8; ++w) {  // slot, group, line
        words->low[w] = simt::LoadWord(at.words + offset + w / 4 * at.slot_step +
                                       w / 2 % 2 * at.group_step + w % 2 * 8);
      }
    } else {
      constexpr int kSlots = kLow == 4 ? 2 : 1;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const Words2 two = simt::LoadWords2(at.words + offset + slot * at.slot_step);
        words->low[2 * slot] = two.x[0];
        words->low[2 * slot + 1] = two.x[1];
        if constexpr (kHasHigh) {
          const std::byte* const high = at.high + offset + slot * at.slot_step;
#pragma unroll
          for (int part = 0; part < 2 / kSlots; ++part) {
            const Words4 four = simt::LoadWords4(high + 16 * part);
#pragma unroll
            for (int w = 0; w < 4; ++w) words->high[4 * (slot + part) + w] = four.x[w];
          }
        }
      }
    }
  }

  // Codes of these products count 2^kRaised of the others: subnormal F16 takes the bits of a number
  // a few places up as well as in place, so one shift of a word serves two products.
  static constexpr int kRaised = kBits == 8 ? 0 : kBits == 2 ? 2 : 4;
  static constexpr bool IsRaised(int product) {
    return kBits == 3 ? product >= 2 : kBits != 8 && product % 2 == 1;
  }
  // What numbers of a product are multiplied with to count 1.
  static constexpr float kRaisedUnit = kNumberUnit / static_cast<float>(1 << kRaised);
  static constexpr float UnitOf(int product) {
    return IsRaised(product) ? kRaisedUnit : kNumberUnit;
  }

  // Codes as numbers n 2^-24, raised where IsRaised. `flip`: 0x80808080 where codes of 8 bits are
  // signed, which then count 128 more.
  KVL_DEVICE static void Numbers(const Words& words, uint32_t flip, int lane, Tile& a) {
    static_assert(kBits == 8 || kBits <= 4);
    if constexpr (kBits == 3) {
      NumbersWithHighBits(words, lane, a);
    } else {
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if constexpr (kBits == 8) {
            const uint32_t x = words.low[4 * slot + n] ^ flip;
            a[n][2 * slot] = simt::PermuteBytes(x, 0, 0x4140);
            a[n][2 * slot + 1] = simt::PermuteBytes(x, 0, 0x4342);
          } else {
            constexpr uint32_t kMask = ((1u << kLow) - 1) * 0x10001u;
            const int line = kLow == 4 ? n : 4 * slot + n;
#pragma unroll
            for (int row = 0; row < 2; ++row) {
              const uint32_t x = words.low[kLow == 4 ? 2 * slot + row : row];
              a[n][2 * slot + row] =
                  x >> (kLow * (line / 2 * 2)) & (IsRaised(n) ? kMask << kRaised : kMask);
            }
          }
        }
      }
    }
  }

  // Codes as what they stand for. `table`: of window `lane`, in F16; it is met by all lanes.
  KVL_DEVICE static void Units(const Words& words, uint32_t table, int lane, Tile& a) {
    if constexpr (kBits == 8) {
      constexpr uint32_t kSixteenth = 0x2c002c00, kMinus72 = 0xd480d480;
#pragma unroll
      for (int w = 0; w < 8; ++w) {  // 1024 + n, then (n - 128) / 16
        const uint32_t x = words.low[w];
        const uint32_t first = simt::PermuteBytes(x, 0x64646464, 0x4140);
        const uint32_t second = simt::PermuteBytes(x, 0x64646464, 0x4342);
        a[w % 4][w / 4 * 2] = simt::FmaF16x2(first, kSixteenth, kMinus72);
        a[w % 4][w / 4 * 2 + 1] = simt::FmaF16x2(second, kSixteenth, kMinus72);
      }
    } else {
      constexpr int kParts = kLow == 4 ? 2 : 1;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if constexpr (kHasHigh) {
          UnitsWithHighBits(words, part, table, lane, a);
        } else {
          UnitsOf(words, 0, part, table, lane, a);
          UnitsOf(words, 1, part, table, lane, a);
        }
      }
    }
  }

 private:
  // Of 3 bits. Words of 16 bits that have a code in each hex digit are made of every other line:
  // lines 0, 2, 4, 6 and 1, 3, 5, 7. Bit 3 of digits is anything.
  KVL_DEVICE static void NumbersWithHighBits(const Words& words, int lane, Tile& a) {
    // The high bits of the lane's codes are digit lane / 4 of the words of lines: of both rows and
    // halves, in this order.
    const uint32_t byte = static_cast<uint32_t>(lane / 8) * 0x1111u + 0x4040u;
    const auto bytes_of = [&](int first) {  // lines first, first + 4, first + 1, first + 5
      const uint32_t* const high = words.high + first;
      return simt::PermuteBytes(simt::PermuteBytes(high[0], high[4], byte),
                                simt::PermuteBytes(high[1], high[5], byte), 0x5410);
    };
    const uint32_t shift = static_cast<uint32_t>(lane) & 4;  // which digit of a byte
    const uint32_t near = bytes_of(0) >> shift, far = bytes_of(2) << (4 - shift);
    const uint32_t high = simt::MergeBits(0x0f0f0f0f, near, far);  // lines 0 2 4 6 1 3 5 7
    const uint32_t by_row[2][2] = {{high << 2, high << 1}, {high, high >> 1}};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t low = words.low[row] >> (2 * odd);
        const uint32_t above =
            simt::PermuteBytes(by_row[row][0], by_row[row][1], odd == 0 ? 0x5410 : 0x7632);
        const uint32_t codes = simt::MergeBits(0x33333333, low, above);
#pragma unroll
        for (int slot = 0; slot < 2; ++slot) {
          const uint32_t x = codes >> (8 * slot);
          a[odd][2 * slot + row] = x & 0x00070007;
          a[odd + 2][2 * slot + row] = x & 0x00700070;
        }
      }
    }
  }

  // Those of one word without high bits.
  KVL_DEVICE static void UnitsOf(const Words& words, int row, int part, uint32_t table, int lane,
                                 Tile& a) {
    constexpr int kCodes = kLow == 4 ? 4 : 8;
    uint32_t x = words.low[kLow == 4 ? 2 * part + row : row];
    uint32_t turned = simt::PermuteBytes(x, 0, 0x2301);  // either half by 8 bits
    if constexpr (kBits == 1) {
      if (lane % 2 == 1) {  // the lane's codes are those from bit 8 on
        const uint32_t swapped = x;
        x = turned;
        turned = swapped;
      }
    }
#pragma unroll
    for (int code = 0; code < kCodes; ++code) {
      const int shift = kLow * code;
      // Windows of codes from bit 8 on are those of the turned word from bit 0 on.
      const uint32_t from = shift >= 8 ? turned : x;
      const int slot = kLow == 4 ? part : code / 4;
      a[code % 4][2 * slot + row] = LookUp(table, from >> (shift % 8), from >> (shift % 8 + 16));
    }
  }

  // What two windows stand for, which are the lowest bits of words.
  KVL_DEVICE static uint32_t LookUp(uint32_t table, uint32_t first, uint32_t second) {
    const uint32_t low = simt::Shuffle(table, static_cast<int>(first));
    const uint32_t high = simt::Shuffle(table, static_cast<int>(second));
    return simt::PermuteBytes(low, high, 0x5410);
  }

  // Lines whose low bits lie 8 bits apart make a word of four windows, one a byte: the low bits of
  // either line and channel in bits 0 to 3, its high bit in bit 4. Bits above are not looked at.
  static constexpr int kApart = 8 / kLow;  // lines
  KVL_DEVICE static void UnitsWithHighBits(const Words& words, int part, uint32_t table, int lane,
                                           Tile& a) {
#pragma unroll
    for (int line = 0; line < kApart; ++line) {
      // The high bits of both rows and halves of a line are four bits of its word, from here on.
      const uint32_t turn = static_cast<uint32_t>(lane / 4 * 4);
      const uint32_t near = words.high[4 * part + line], far = words.high[4 * part + line + kApart];
      const uint32_t high = (simt::ShiftRight(near, near, turn - 4) & 0xf0) |
                            (simt::ShiftRight(far, far, turn - 12) & 0xf000);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t x = words.low[kLow == 4 ? 2 * part + row : row];
        uint32_t low = x >> (kLow * line);
        if constexpr (kLow == 2) {
          if (line == 3) {  // the window of line 7 goes round the end of its half
            const uint32_t turned = simt::PermuteBytes(x, 0, 0x2301);
            low = simt::MergeBits(0x000f000f, low, turned << 2);
          }
        }
        // Of bits 4, 5, 12 and 13 the second and the fourth go to bits 20 and 28.
        const uint32_t spread = (high >> (2 * row) & 0x3030) * 0x8001u;
        const uint32_t windows = simt::MergeBits(0x0f0f0f0f, low, spread);
        const int slot = kLow == 4 ? part : 0;
        const int far_slot = kLow == 4 ? part : 1;
        a[line][2 * slot + row] = LookUp(table, windows, windows >> 16);
        a[(line + kApart) % 4][2 * far_slot + row] = LookUp(table, windows >> 8, windows >> 24);
      }
    }
  }
};

// Plain rows in Bf16.
struct RowReader {
  static constexpr int kKeyStep = 2048;
  static constexpr int kValueStep = 64;
  struct Words {
    Words2 two[2][4];  // by slot and product
  };

  KVL_DEVICE static TileAt KeyTile(const std::byte* rows, int lane) {
    TileAt at;
    at.words = rows + lane % 4 * 512 + lane / 4 * 8;
    at.slot_step = 256;
    at.group_step = 64;
    return at;
  }
  KVL_DEVICE static TileAt ValueTile(const std::byte* rows, int n_tiles, int lane) {
    const int pair = n_tiles * 64;
    TileAt at;
    at.words = rows + lane % 4 * 8 * pair + lane / 4 * 8;
    at.slot_step = 4 * pair;
    at.group_step = pair;
    return at;
  }
  KVL_DEVICE static void Load(const TileAt& at, uint32_t offset, Words* words) {
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        words->two[slot][n] =
            simt::LoadWords2(at.words + offset + slot * at.slot_step + n * at.group_step);
      }
    }
  }
  KVL_DEVICE static void Rows(const Words& words, Tile& a) {
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        a[n][2 * slot] = words.two[slot][n].x[0];
        a[n][2 * slot + 1] = words.two[slot][n].x[1];
      }
    }
  }
  // Clears entries of V outside [begin, end), which may hold anything.
  KVL_DEVICE static void ClearUnseenValues(int begin, int end, int lane, Tile& a) {
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int entry = 2 * (8 * (lane % 4) + 4 * slot + n);
        const uint32_t mask = (entry >= begin && entry < end ? 0xffffu : 0) |
                              (entry + 1 >= begin && entry + 1 < end ? 0xffff0000u : 0);
        a[n][2 * slot] &= mask;
        a[n][2 * slot + 1] &= mask;
      }
    }
  }
};

}  // namespace kvlathe::cuda
