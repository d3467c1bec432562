// Decodes codes of sealed blocks (packed_layout.h) to the Bf16 lines that dots read. Only files
// compiled with AVX-512 flags may include this, and everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "format/packed_layout.h"

namespace kvlathe {
namespace {

// Stands for lines that were decoded before, which are groups of one line.
constexpr int kDecodedBits = 16;
// Stands for segments of several bits.
constexpr int kSplit = 0;

// The numbers of a line are (code - CodeCentre) * CodeUnit. They lie around 0 because the other
// side of a dot is rounded to Bf16, and the error of that grows with the numbers. Numbers of 8 bits
// come in units of 2^24, as a conversion from the top byte of a word leaves them.
constexpr float CodeCentre(int bits, bool is_symmetric) {
  return is_symmetric && bits == 8 ? 0 : static_cast<float>(1 << (bits - 1));
}
constexpr float CodeUnit(int bits) { return bits == 8 ? 0x1p24f : 1; }

// The tables of numbers by code that decoding keeps in registers. An index of 5 bits holds bits of
// other codes above its own: tables repeat where these make no difference, and else are those of
// windows (unit_codes.h). With 3 and 5 bits `high` has the numbers of the
// codes whose high bit is set. With 8 bits `low` is what makes a code a signed byte.
struct CodeTables {
  __m512i low, high;
};

template <int kBits>
KVL_INLINE CodeTables MakeCodeTables(bool is_symmetric) {
  CodeTables tables = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  if constexpr (kBits == 8) {
    if (!is_symmetric) tables.low = _mm512_set1_epi8(-128);
  } else if constexpr (kBits != kDecodedBits) {
    const auto table = [](int first_number) __attribute__((always_inline)) {
      constexpr int kMask = (1 << LowBits(kBits)) - 1;
      const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const __m512i numbers = _mm512_add_epi32(_mm512_and_si512(lanes, _mm512_set1_epi32(kMask)),
                                               _mm512_set1_epi32(first_number));
      const __m512 half = _mm512_cvtepi32_ps(numbers);
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(half, half));
    };
    tables = {table(-(1 << (kBits - 1))), table(0)};
  }
  return tables;
}

// Makes the tables of a UnitTable. At 8 bits they are not used.
template <int kBits>
KVL_INLINE CodeTables LoadCodeTables(const uint16_t* table) {
  if constexpr (kBits == 8 || kBits == kDecodedBits) {
    return MakeCodeTables<kBits>(false);
  } else {
    return {_mm512_loadu_si512(table), _mm512_loadu_si512(table + 32)};
  }
}

template <int kBits>
struct CodeGroup {
  static constexpr int kLines = LinesPerGroup(kBits);
  static constexpr int kBytes = GroupBytes(kBits);

  KVL_INLINE explicit CodeGroup(const std::byte* group)
      : words(_mm512_loadu_si512(group)), high_bits(group + 64) {}

  template <int kLine>
  KVL_INLINE __m512bh Line(const CodeTables& tables) const {
    static_assert(kLine < kLines);
    if constexpr (kBits == kDecodedBits) {
      return reinterpret_cast<__m512bh>(words);
    } else if constexpr (kBits == 8) {
      return ByteLine<kLine>(tables);
    } else {
      constexpr int kShift = LowBits(kBits) * kLine;
      // Windows of the last lines go round the end of their word. A shift is twice as fast.
      constexpr bool kTurns = kShift + LowWindowBits(kBits) > 16;
      const __m512i codes =
          kTurns ? _mm512_shrdi_epi16(words, words, kShift % 16) : _mm512_srli_epi16(words, kShift);
      __m512i numbers = _mm512_permutexvar_epi16(codes, tables.low);
      if constexpr (HasHighBit(kBits)) {
        uint32_t mask;
        __builtin_memcpy(&mask, high_bits + 4 * kLine, sizeof(mask));
        numbers = _mm512_mask_permutexvar_epi16(numbers, mask, codes, tables.high);
      }
      return reinterpret_cast<__m512bh>(numbers);
    }
  }

  // Both words of a pair become floats from their top byte; an 8-bit integer has all its bits in
  // the upper half of a float, which is its Bf16.
  template <int kLine>
  KVL_INLINE __m512bh ByteLine(const CodeTables& tables) const {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i bytes = _mm512_xor_si512(words, tables.low);
    const __m512i pairs =
        kLine == 0 ? _mm512_unpacklo_epi8(zero, bytes) : _mm512_unpackhi_epi8(zero, bytes);
    const __m512i top = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_and_si512(pairs, top));
    const __m512 even = _mm512_cvtepi32_ps(_mm512_slli_epi32(pairs, 16));
    return reinterpret_cast<__m512bh>(_mm512_or_si512(
        _mm512_castps_si512(odd), _mm512_srli_epi32(_mm512_castps_si512(even), 16)));
  }

  __m512i words;
  const std::byte* high_bits;
};

// Fetches the group of a block to come that lies where `group` does in this one.
template <int kBits>
KVL_INLINE void PrefetchGroup(const std::byte* next) {
  if constexpr (kBits != kDecodedBits) PrefetchLine(next);
  if constexpr (HasHighBit(kBits)) PrefetchLine(next + 64);
}

// The lines of the codes of n_channels of K, in order.
template <int kBits>
void DecodeKeys(const std::byte* codes, const std::byte* next, const CodeTables& tables,
                int n_channels, uint16_t* out) {
  using Group = CodeGroup<kBits>;
  for (int i = 0; i < 2 * n_channels / Group::kLines; ++i) {
    const Group group(codes);
    PrefetchGroup<kBits>(next);
    Unroll<Group::kLines>([&](auto line) KVL_PART {
      _mm512_store_si512(out + 32 * line.value,
                         reinterpret_cast<__m512i>(group.template Line<line.value>(tables)));
    });
    codes += Group::kBytes;
    next += Group::kBytes;
    out += 32 * Group::kLines;
  }
}

// The lines of the codes of n_channels of V in the order of a plain block of `rank`.
template <int kBits>
void DecodeValues(const std::byte* codes, const std::byte* next, const CodeTables& tables,
                  int n_channels, int rank, uint16_t* out) {
  using Group = CodeGroup<kBits>;
  for (int pair = 0; pair < kBlockSize / 2; pair += Group::kLines) {
    for (int dim = 0; dim < n_channels; dim += kLanes) {
      const Group group(codes);
      PrefetchGroup<kBits>(next);
      Unroll<Group::kLines>([&](auto line) KVL_PART {
        _mm512_store_si512(out + 2 * ((pair + line.value) * rank + dim),
                           reinterpret_cast<__m512i>(group.template Line<line.value>(tables)));
      });
      codes += Group::kBytes;
      next += Group::kBytes;
    }
  }
}

// Calls f with the bits as a compile-time Index.
template <typename F>
KVL_INLINE void WithBits(int bits, const F& f) {
  switch (bits) {
    case 2:
      return f(Index<2>{});
    case 3:
      return f(Index<3>{});
    case 4:
      return f(Index<4>{});
    case 5:
      return f(Index<5>{});
    case 8:
      return f(Index<8>{});
    default:
      return f(Index<kDecodedBits>{});
  }
}

// Does the same with the bits of a segment.
template <typename F>
KVL_INLINE void WithSegmentBits(int bits, const F& f) {
  if (bits == 1) return f(Index<1>{});
  WithBits(bits, f);
}

// Sixteen scales of split bits, of channels in a block or of tokens (ScaleOfByte).
KVL_INLINE __m512 LoadUnitScales(const std::byte* from) {
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(bytes, kScaleShift),
                                              _mm512_set1_epi32(static_cast<int>(kScaleBase))));
}

}  // namespace
}  // namespace kvlathe
