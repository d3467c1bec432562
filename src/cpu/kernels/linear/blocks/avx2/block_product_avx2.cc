#include "cpu/kernels/linear/blocks/block_panel.h"
#include "cpu/kernels/linear/blocks/block_product_lanes.h"

namespace kvlathe {
namespace {

KVL_LANES Vec LoadNumbers(DType type, const void* x, int64_t i) {
  return type == DType::kBf16 ? LoadBf16(static_cast<const uint16_t*>(x) + i)
                              : Load(static_cast<const float*>(x) + i);
}

// 8 sums of 32 bits of neighbouring codes.
KVL_LANES IntVec SumFours(IntVec codes) {
  const IntVec pairs = _mm256_maddubs_epi16(SetBytes(1), codes);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

KVL_LANES int SumOf(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(1, 0, 3, 2)));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(x);
}

// The factors of a unit of 8 outputs. The file is compiled without contraction: products and
// differences are rounded as the portable code rounds them.
struct UnitVecs {
  Vec scale, min;
};
template <WeightType kType>
KVL_LANES UnitVecs FactorsOfUnit(const uint8_t* group, int unit, int first) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  const Vec scale = BlockScales<kType>(group, first);
  const Vec min = BlockMins<kType>(group, first, scale);
  if constexpr (kLayout.units() == 0) return {scale, min};
  return {scale * ToFloats(UnitScales32<kType>(group, unit, first)),
          min * UnitMins<kType>(group, unit, first)};
}

// Input i of a quad of 8 outputs, as the numbers that weights stand for.
template <WeightType kType>
KVL_LANES Vec NumbersOf(IntVec codes, int i, const UnitVecs& factors) {
  const IntVec shifted = _mm256_sll_epi32(codes, _mm_cvtsi32_si128(24 - 8 * i));
  const IntVec number =
      HasSignedNumbers<kType>()
          ? _mm256_srai_epi32(shifted, 24)
          : _mm256_sub_epi32(_mm256_srli_epi32(shifted, 24), _mm256_set1_epi32(ZeroOf<kType>()));
  const Vec product = factors.scale * ToFloats(number);
  return LayoutOfBlocks(kType).has_min ? product - factors.min : product;
}

// Calls store(first input of a pair, first output, numbers of the first and of the second input).
template <WeightType kType, typename F>
KVL_LANES void ForPairs(const BlockPanel& panel, const F& store) {
  constexpr BlockLayout kLayout = LayoutOfBlocks(kType);
  constexpr int kUnitQuads = kLayout.unit / 4;
  for (int64_t out = 0; out < kOutBlock; out += kGroupOuts) {
    const uint8_t* group =
        reinterpret_cast<const uint8_t*>(panel.w) + out / kGroupOuts * panel.w_stride;
    for (int64_t in = 0; in < panel.n_in; in += kLayout.block, group += kLayout.group_bytes()) {
      for (int b = 0; b < kLayout.block / kBlockIns; ++b) {
        alignas(64) uint8_t codes[kQuads][kLine];
        WidenCodes<kType>(group + kLayout.code_offset() + b * kLayout.code_bytes(), codes);
        for (int first = 0; first < kGroupOuts; first += kLanes) {
          UnitVecs factors = {};
          for (int quad = 0; quad < kQuads; ++quad) {
            const int64_t at = b * kBlockIns + quad * 4;
            if (quad % kUnitQuads == 0) {
              factors = FactorsOfUnit<kType>(group, static_cast<int>(at / kLayout.unit), first);
            }
            const IntVec four = LoadWords(&codes[quad][4 * first]);
            for (int i = 0; i < 4; i += 2) {
              store(in + at + i, out + first, NumbersOf<kType>(four, i, factors),
                    NumbersOf<kType>(four, i + 1, factors));
            }
          }
        }
      }
    }
  }
}

template <WeightType kType>
void WidenToBf16(const BlockPanel& panel, uint16_t* to) {
  ForPairs<kType>(
      panel, [&](int64_t in, int64_t out, Vec a, Vec b) __attribute__((always_inline)) {
        uint16_t* const line = to + (in / 2 * kOutBlock + out) * 2;
        const __m128i first = RoundToBf16(a), second = RoundToBf16(b);
        auto* const p = reinterpret_cast<__m128i*>(line);
        _mm_storeu_si128(p, _mm_unpacklo_epi16(first, second));
        _mm_storeu_si128(p + 1, _mm_unpackhi_epi16(first, second));
      });
}

template <WeightType kType>
void WidenToF32(const BlockPanel& panel, float* to) {
  ForPairs<kType>(
      panel, [&](int64_t in, int64_t out, Vec a, Vec b) __attribute__((always_inline)) {
        Store(to + in * kOutBlock + out, a);
        Store(to + (in + 1) * kOutBlock + out, b);
      });
}

}  // namespace

void QuantizeRowAvx2(DType x_type, const void* x, int64_t n_in, int8_t* codes, RowBlock* blocks) {
  for (int64_t first = 0; first < n_in; first += kBlockIns, ++blocks) {
    Vec values[4];
    Vec largest = Zero(), poison = Zero();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      values[i] = LoadNumbers(x_type, x, first + i * kLanes);
      largest = Larger(largest, Absolute(values[i]));
      poison = poison + (values[i] - values[i]);
    }
    const float max = MaxOfLanes(largest);
    const float scale = max / 127.0f + SumOfLanes(poison);
    const Vec inverse = Set1(max >= kSmallestBlockMax ? 127.0f / max : 0.0f);
    IntVec ints[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) ints[i] = _mm256_cvtps_epi32(values[i] * inverse);
    const IntVec packed = _mm256_packs_epi16(_mm256_packs_epi32(ints[0], ints[1]),
                                             _mm256_packs_epi32(ints[2], ints[3]));
    const IntVec order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const IntVec in_order = _mm256_permutevar8x32_epi32(packed, order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + first), in_order);
    const IntVec fours = SumFours(in_order);
    const int sums[2] = {SumOf(_mm256_castsi256_si128(fours)),
                         SumOf(_mm256_extracti128_si256(fours, 1))};
    *blocks = {.scale = scale,
               .minus_sum = -scale * static_cast<float>(sums[0] + sums[1]),
               .minus_half_sums = {-scale * static_cast<float>(sums[0]),
                                   -scale * static_cast<float>(sums[1])}};
  }
}

void MultiplyBlocksAvx2(WeightType type, const LinearPart& part, const QuantizedRows& x) {
  ForBlockType(type, [&](auto of) { MultiplyBlocks<of.value>(part, x); });
}

void WidenToBf16Avx2(const BlockPanel& panel, uint16_t* to) {
  ForBlockType(panel.type, [&](auto of) { WidenToBf16<of.value>(panel, to); });
}

void WidenToF32Avx2(const BlockPanel& panel, float* to) {
  ForBlockType(panel.type, [&](auto of) { WidenToF32<of.value>(panel, to); });
}

}  // namespace kvlathe
