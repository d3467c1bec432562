// How a warp reads weights as a file has them: blocks of ggml, in which codes stand for integers
// under scales (cpu/kernels/linear/blocks/block_values.cc says what each byte means).
//
// A stretch is 32 inputs of a row; a block is one stretch or eight. Of a stretch the lane with
// place i = 0 to 3 takes the inputs 4 i to 4 i + 3 and 16 + 4 i to 16 + 4 i + 3, as integers in
// pairs of BF16, which holds all of them exactly: pairs[0] = (4 i, 4 i + 2), pairs[1] = (4 i + 1,
// 4 i + 3), pairs[2] and [3] the same of the second half. A value is scale * integer - min, with
// the factors of its half of the stretch.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda/simt/simt.h"
#include "machine/weight_type.h"

namespace kvlathe::cuda {

inline constexpr int kStretch = 32;  // inputs

// Of the two halves of a stretch.
struct StretchFactors {
  float scale[2];
  float min[2];
};

// 4 bytes that begin anywhere. What is read lies in the words that hold them.
KVL_DEVICE uint32_t LoadWordAnywhere(const std::byte* from) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const uint32_t low = simt::LoadWord(reinterpret_cast<const void*>(address & ~uintptr_t{3}));
  const uint32_t high =
      simt::LoadWord(reinterpret_cast<const void*>((address + 3) & ~uintptr_t{3}));
  return simt::ShiftRight(low, high, static_cast<uint32_t>(address & 3) * 8);
}
KVL_DEVICE uint32_t LoadByte(const std::byte* from) { return static_cast<uint32_t>(*from); }
KVL_DEVICE uint32_t LoadHalfWord(const std::byte* from) {  // at a multiple of 2
  return *reinterpret_cast<const uint16_t*>(from);
}
KVL_DEVICE float LoadF16(const std::byte* from) { return simt::FloatOfF16(LoadHalfWord(from)); }

// Two numbers of up to 7 bits, in the low bits of each half, less kZero: BF16 from 128 on counts in
// the last place of its mantissa.
template <int kZero>
KVL_DEVICE uint32_t PairOfCodes(uint32_t codes) {
  constexpr uint32_t kOne = 0x3f803f80u;
  constexpr uint32_t kMinus128 = 0xc300c300u;
  return simt::FmaBf16x2(codes | 0x43004300u, kOne, kMinus128 | kZero * 0x00010001u);
}
// Two signed bytes, in the low byte of each half; other bits are ignored. The sign bit makes -128
// to -256.
KVL_DEVICE uint32_t PairOfBytes(uint32_t bytes) {
  return simt::FmaBf16x2((bytes & 0x007f007fu) | 0x43004300u, 0x3f803f80u,
                         (bytes & 0x00800080u) | 0xc300c300u);
}

// Four bits a code: the lower halves of 16 bytes, then the upper ones.
template <int kZero>
KVL_DEVICE void PairsOfNibbles(uint32_t word, uint32_t (&pairs)[4]) {
  pairs[0] = PairOfCodes<kZero>(word & 0x000f000fu);
  pairs[1] = PairOfCodes<kZero>(word >> 8 & 0x000f000fu);
  pairs[2] = PairOfCodes<kZero>(word >> 4 & 0x000f000fu);
  pairs[3] = PairOfCodes<kZero>(word >> 12 & 0x000f000fu);
}
// The same with bit i of `high` as bit 4 of code i of the stretch.
template <int kZero>
KVL_DEVICE void PairsOfFiveBits(uint32_t word, uint32_t high, int i, uint32_t (&pairs)[4]) {
  const uint32_t first = high >> (4 * i), second = first >> 16;
  const auto even = [](uint32_t h) { return (h & 1) << 4 | (h & 4) << 18; };
  const auto odd = [](uint32_t h) { return (h & 2) << 3 | (h & 8) << 17; };
  pairs[0] = PairOfCodes<kZero>((word & 0x000f000fu) | even(first));
  pairs[1] = PairOfCodes<kZero>((word >> 8 & 0x000f000fu) | odd(first));
  pairs[2] = PairOfCodes<kZero>((word >> 4 & 0x000f000fu) | even(second));
  pairs[3] = PairOfCodes<kZero>((word >> 12 & 0x000f000fu) | odd(second));
}

// Tables of 16 signed bytes, four a word.
struct NonLinearWords {
  static constexpr uint32_t k0 = 0xbfad9881u, k1 = 0xf6eaddcfu, k2 = 0x26190d01u, k3 = 0x71594535u;
};
struct Fp4Words {
  static constexpr uint32_t k0 = 0x03020100u, k1 = 0x0c080604u, k2 = 0xfdfeff00u, k3 = 0xf4f8fafcu;
};

// What four nibbles, the low 16 bits of `codes`, stand for: a byte each.
template <typename Table>
KVL_DEVICE uint32_t NumbersOf(uint32_t codes) {
  const uint32_t selector = codes & 0x7777u;
  const uint32_t low = simt::PermuteBytes(Table::k0, Table::k1, selector);
  const uint32_t high = simt::PermuteBytes(Table::k2, Table::k3, selector);
  return simt::PermuteBytes(low, high, (codes & 0x8888u) >> 1 | 0x3210u);
}
template <typename Table>
KVL_DEVICE void PairsOfNumbers(uint32_t word, uint32_t (&pairs)[4]) {
  const uint32_t codes = simt::PermuteBytes(word, 0, 0x3120);  // bytes 0, 2, 1, 3
  const uint32_t even = NumbersOf<Table>(codes), odd = NumbersOf<Table>(codes >> 16);
  pairs[0] = PairOfBytes(even);
  pairs[2] = PairOfBytes(even >> 8);
  pairs[1] = PairOfBytes(odd);
  pairs[3] = PairOfBytes(odd >> 8);
}

// kBlockBytes: of a block; kStretches: of a block; kHasMin: whether minima are not all zero;
// kHalves: whether the halves of a stretch differ in their factors; kFitsTwice: whether registers
// do for two tiles of outputs.
template <int kBytes, int kStretchesOfBlock, bool kMin, bool kTwo, bool kTwoTiles = true>
struct BlockFacts {
  static constexpr int kBlockBytes = kBytes;
  static constexpr int kStretches = kStretchesOfBlock;
  static constexpr bool kHasMin = kMin;
  static constexpr bool kHalves = kTwo;
  static constexpr bool kFitsTwice = kTwoTiles;
};
KVL_DEVICE StretchFactors OneFactor(float scale, float min) { return {{scale, scale}, {min, min}}; }

// Codes: of stretch c of a block, for the lane with place i. FactorsOf: of stretch c.
template <WeightType kType>
struct BlockReader;

template <>
struct BlockReader<WeightType::kQ4_0> : BlockFacts<18, 1, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfNibbles<8>(LoadWordAnywhere(block + 2 + 4 * i), pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), 0);
  }
};

template <>
struct BlockReader<WeightType::kQ4_1> : BlockFacts<20, 1, true, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfNibbles<0>(simt::LoadWord(block + 4 + 4 * i), pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), -LoadF16(block + 2));
  }
};

template <>
struct BlockReader<WeightType::kQ5_0> : BlockFacts<22, 1, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfFiveBits<16>(LoadWordAnywhere(block + 6 + 4 * i), LoadWordAnywhere(block + 2), i, pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), 0);
  }
};

template <>
struct BlockReader<WeightType::kQ5_1> : BlockFacts<24, 1, true, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfFiveBits<0>(simt::LoadWord(block + 8 + 4 * i), simt::LoadWord(block + 4), i, pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), -LoadF16(block + 2));
  }
};

template <>
struct BlockReader<WeightType::kQ8_0> : BlockFacts<34, 1, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    const uint32_t first = LoadWordAnywhere(block + 2 + 4 * i);
    const uint32_t second = LoadWordAnywhere(block + 18 + 4 * i);
    pairs[0] = PairOfBytes(first);
    pairs[1] = PairOfBytes(first >> 8);
    pairs[2] = PairOfBytes(second);
    pairs[3] = PairOfBytes(second >> 8);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), 0);
  }
};

// Two bits of a code at `shift` of bytes that a stretch shares with three others.
KVL_DEVICE uint32_t TwoBits(uint32_t word, int shift) { return word >> shift & 0x00030003u; }

template <>
struct BlockReader<WeightType::kQ2_K> : BlockFacts<84, 8, true, true, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    const std::byte* const codes = block + 16 + c / 4 * 32 + 4 * i;
    const uint32_t first = simt::LoadWord(codes), second = simt::LoadWord(codes + 16);
    const int shift = c % 4 * 2;
    pairs[0] = PairOfCodes<0>(TwoBits(first, shift));
    pairs[1] = PairOfCodes<0>(TwoBits(first, shift + 8));
    pairs[2] = PairOfCodes<0>(TwoBits(second, shift));
    pairs[3] = PairOfCodes<0>(TwoBits(second, shift + 8));
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    const uint32_t both = LoadHalfWord(block + 2 * c);
    const float scale = LoadF16(block + 80), min = LoadF16(block + 82);
    return {{scale * static_cast<float>(both & 15), scale * static_cast<float>(both >> 8 & 15)},
            {min * static_cast<float>(both >> 4 & 15), min * static_cast<float>(both >> 12)}};
  }
};

template <>
struct BlockReader<WeightType::kQ3_K> : BlockFacts<110, 8, false, true, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    const std::byte* const codes = block + 32 + c / 4 * 32 + 4 * i;
    const int shift = c % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = LoadWordAnywhere(codes + 16 * half);
      const uint32_t high = LoadWordAnywhere(block + 4 * i + 16 * half) >> c & 0x01010101u;
      pairs[2 * half] = PairOfCodes<4>(TwoBits(low, shift) | (high & 0x00010001u) << 2);
      pairs[2 * half + 1] = PairOfCodes<4>(TwoBits(low, shift + 8) | (high >> 6 & 0x00040004u));
    }
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    const std::byte* const scales = block + 96;
    const float scale = LoadF16(block + 108);
    const auto factor = [&](int unit) {
      const uint32_t low = LoadByte(scales + unit % 8) >> (unit / 8 * 4) & 15;
      const uint32_t high = LoadByte(scales + 8 + unit % 4) >> (unit / 4 * 2) & 3;
      return scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    };
    return {{factor(2 * c), factor(2 * c + 1)}, {0, 0}};
  }
};

// The scale and the minimum of six bits of stretch c, in 12 bytes at a multiple of 4, with those
// of the block in front of them.
KVL_DEVICE StretchFactors SixBitFactors(const std::byte* block, int c) {
  const simt::Words4 words = simt::LoadWords4(block);
  const int j = c % 4 * 8;
  const uint32_t scale = words.x[1] >> j & 255, min = words.x[2] >> j & 255;
  const uint32_t both = words.x[3] >> j & 255;
  const uint32_t unit_scale = c < 4 ? scale & 63 : (both & 15) | (scale >> 2 & 48);
  const uint32_t unit_min = c < 4 ? min & 63 : both >> 4 | (min >> 2 & 48);
  return OneFactor(simt::FloatOfF16(words.x[0] & 0xffff) * static_cast<float>(unit_scale),
                   simt::FloatOfF16(words.x[0] >> 16) * static_cast<float>(unit_min));
}

template <>
struct BlockReader<WeightType::kQ4_K> : BlockFacts<144, 8, true, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    const std::byte* const codes = block + 16 + c / 2 * 32 + 4 * i;
    const uint32_t first = simt::LoadWord(codes), second = simt::LoadWord(codes + 16);
    const int shift = c % 2 * 4;
    pairs[0] = PairOfCodes<0>(first >> shift & 0x000f000fu);
    pairs[1] = PairOfCodes<0>(first >> (shift + 8) & 0x000f000fu);
    pairs[2] = PairOfCodes<0>(second >> shift & 0x000f000fu);
    pairs[3] = PairOfCodes<0>(second >> (shift + 8) & 0x000f000fu);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    return SixBitFactors(block, c);
  }
};

template <>
struct BlockReader<WeightType::kQ5_K> : BlockFacts<176, 8, true, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    const std::byte* const codes = block + 48 + c / 2 * 32 + 4 * i;
    const int shift = c % 2 * 4;
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = simt::LoadWord(codes + 16 * half) >> shift;
      const uint32_t high = simt::LoadWord(block + 16 + 4 * i + 16 * half) >> c & 0x01010101u;
      pairs[2 * half] = PairOfCodes<0>((low & 0x000f000fu) | (high & 0x00010001u) << 4);
      pairs[2 * half + 1] = PairOfCodes<0>((low >> 8 & 0x000f000fu) | (high >> 4 & 0x00100010u));
    }
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    return SixBitFactors(block, c);
  }
};

template <>
struct BlockReader<WeightType::kQ6_K> : BlockFacts<210, 8, false, true, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    const std::byte* const low_bits = block + c / 4 * 64 + c % 2 * 32 + 4 * i;
    const std::byte* const high_bits = block + 128 + c / 4 * 32 + 4 * i;
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = LoadWordAnywhere(low_bits + 16 * half) >> (c % 4 / 2 * 4);
      const uint32_t high = LoadWordAnywhere(high_bits + 16 * half) >> (c % 4 * 2);
      pairs[2 * half] = PairOfCodes<32>((low & 0x000f000fu) | (high & 0x00030003u) << 4);
      pairs[2 * half + 1] = PairOfCodes<32>((low >> 8 & 0x000f000fu) | (high >> 4 & 0x00300030u));
    }
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    const float scale = LoadF16(block + 208);
    const uint32_t both = LoadHalfWord(block + 192 + 2 * c);
    return {{scale * static_cast<float>(static_cast<int8_t>(both & 255)),
             scale * static_cast<float>(static_cast<int8_t>(both >> 8))},
            {0, 0}};
  }
};

template <>
struct BlockReader<WeightType::kIq4Nl> : BlockFacts<18, 1, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfNumbers<NonLinearWords>(LoadWordAnywhere(block + 2 + 4 * i), pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    return OneFactor(LoadF16(block), 0);
  }
};

template <>
struct BlockReader<WeightType::kIq4Xs> : BlockFacts<136, 8, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int c, int i, uint32_t (&pairs)[4]) {
    PairsOfNumbers<NonLinearWords>(simt::LoadWord(block + 8 + c * 16 + 4 * i), pairs);
  }
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int c) {
    const simt::Words2 words = simt::LoadWords2(block);
    const uint32_t low = words.x[1] >> (4 * c) & 15, high = words.x[0] >> (16 + 2 * c) & 3;
    const int unit_scale = static_cast<int>(low | high << 4) - 32;
    return OneFactor(simt::FloatOfF16(words.x[0] & 0xffff) * static_cast<float>(unit_scale), 0);
  }
};

template <>
struct BlockReader<WeightType::kMxfp4> : BlockFacts<17, 1, false, false> {
  KVL_DEVICE static void Codes(const std::byte* block, int, int i, uint32_t (&pairs)[4]) {
    PairsOfNumbers<Fp4Words>(LoadWordAnywhere(block + 1 + 4 * i), pairs);
  }
  // Half of 2^(exponent - 127): the numbers are doubled.
  KVL_DEVICE static StretchFactors FactorsOf(const std::byte* block, int) {
    const uint32_t exponent = LoadByte(block);
    return OneFactor(
        std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23), 0);
  }
};

}  // namespace kvlathe::cuda
