// Integer dots of codes with rows of weights, over vectors of lanes.h. line_reader_lanes.h makes
// numbers of 16 bits of the codes of a block, once for all rows, and they are multiplied with
// weights of 16 bits.
//
// Weights are a row's query, or its probabilities, in even steps. The steps are the finest with
// which neither a weight nor any sum overflows. The error of a weight is at most 2^-16 of the
// largest, or, where a sum could overflow, 2^-32 of the sum of all weights times the largest
// number. That is less than Bf16 weights have.
#pragma once

#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/attend/packed_lanes.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// Rows whose queries are rounded together: those of a panel.
constexpr int kMaxCodeRows = 64;

// Rows of weights in even steps: a weight is number * unit.
template <int kRows>
struct CodeWeights {
  alignas(64) int16_t numbers[kRows][kMaxRank];
  float units[kRows];
};

// Rows of floats, `stride` apart.
struct FloatRows {
  const float* first;
  int64_t stride;

  KVL_INLINE const float* operator[](int r) const { return first + r * stride; }
};

// The magnitudes of the weights of rows, lane by lane.
template <int kRows>
struct WeightSizes {
  Vec top[kRows], sum[kRows];

  KVL_INLINE WeightSizes() {
    Unroll<kRows>([&](auto r) KVL_PART { top[r.value] = sum[r.value] = Zero(); });
  }
  KVL_INLINE void Add(int r, Vec x) {
    const Vec size = Absolute(x);
    top[r] = Larger(top[r], size);
    sum[r] = sum[r] + size;
  }
};

// Makes weights of n floats, a multiple of 16, in steps that suit sums with numbers of at most
// `largest`.
template <int kRows>
KVL_INLINE void RoundInSteps(const FloatRows& rows, int n, const WeightSizes<kRows>& sizes,
                             float largest, CodeWeights<kRows>* to) {
  constexpr float kLargestSum = 2.145e9f;
  Unroll<kRows>([&](auto r) KVL_PART {
    const float total = SumOfLanes(sizes.sum[r.value]);
    const float of_sum = total * (largest / kLargestSum);
    const float of_top = MaxOfLanes(sizes.top[r.value]) / 32767;
    const float unit = of_sum > of_top ? of_sum : of_top;
    to->units[r.value] = unit + 0 * total;  // NaN and infinity stay visible
    const Vec per_unit = Set1(unit > 0 ? 1 / unit : 0);
    const float* x = rows[r.value];
    for (int i = 0; i < n; i += 16) {
      Vec steps[16 / kLanes];
      Unroll<16 / kLanes>(
          [&](auto v) KVL_PART { steps[v.value] = Load(x + i + kLanes * v.value) * per_unit; });
      StoreShorts(to->numbers[r.value] + i, steps);
    }
  });
}

template <int kRows>
KVL_INLINE void RoundWeights(const FloatRows& rows, int n, float largest, CodeWeights<kRows>* to) {
  WeightSizes<kRows> sizes;
  for (int i = 0; i < n; i += kLanes) {
    Unroll<kRows>([&](auto r) KVL_PART { sizes.Add(r.value, Load(rows[r.value] + i)); });
  }
  RoundInSteps(rows, n, sizes, largest, to);
}

// Makes weights of rows times `scales`, and sets constants[r] to the dot of row r and `minima`.
template <int kRows>
KVL_INLINE void ScaleAndRoundWeights(const FloatRows& rows, int n, const float* scales,
                                     const float* minima, float largest, CodeWeights<kRows>* to,
                                     float (&constants)[kRows]) {
  alignas(64) float scaled[kRows][kMaxRank];
  WeightSizes<kRows> sizes;
  Vec dots[kRows] = {};
  for (int i = 0; i < n; i += kLanes) {
    const Vec scale = Load(scales + i), minimum = Load(minima + i);
    Unroll<kRows>([&](auto r) KVL_PART {
      const Vec x = Load(rows[r.value] + i);
      dots[r.value] = Fma(x, minimum, dots[r.value]);
      Store(scaled[r.value] + i, x * scale);
      sizes.Add(r.value, x * scale);
    });
  }
  Unroll<kRows>([&](auto r) KVL_PART { constants[r.value] = SumOfLanes(dots[r.value]); });
  RoundInSteps({scaled[0], kMaxRank}, n, sizes, largest, to);
}

// --- Dots. The numbers of a side of a block, which were made of its codes once for all rows, lie
// as K of a plain block does, [channel pair][token][2], and for V in columns of 16 channels,
// [column] [token pair][16][2]. ---

// The words of a pair of channels of K, and of a column of V.
constexpr int kKeyPairWords = 2 * kBlockSize;
constexpr int kColumnWords = 16 * kBlockSize;

// Numbers as V has them of those of K, of n_channels channels.
KVL_LANES void KeyNumbersToValues(const int16_t* k, int n_channels, int16_t* v) {
  for (int pair = 0; pair < n_channels / 2; ++pair, k += kKeyPairWords) {
    int16_t* to = v + pair / 8 * kColumnWords + pair % 8 * 4;
    for (int t = 0; t < kBlockSize; t += 4, to += 64) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(k + 2 * t));
      constexpr int kTurned = _MM_SHUFFLE(3, 1, 2, 0);
      const __m128i turned = _mm_shufflehi_epi16(_mm_shufflelo_epi16(x, kTurned), kTurned);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), turned);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 32), _mm_srli_si128(turned, 8));
    }
  }
}

// The sums of every row: kVecs vectors of 32 bits.
template <int kRows, int kVecs>
struct DotSums {
  IntVec of[kRows][kVecs];

  KVL_INLINE void Clear() {
    Unroll<kRows>([&](auto r) KVL_PART {
      Unroll<kVecs>([&](auto v) KVL_PART { of[r.value][v.value] = IntVec{}; });
    });
  }
  // Adds numbers times each row's pair of weights.
  KVL_INLINE void Add(const IntVec (&numbers)[kVecs], const int16_t* pairs) {
    Unroll<kRows>([&](auto r) KVL_PART {
      const IntVec weights = BroadcastFour(pairs + r.value * kMaxRank);
      Unroll<kVecs>([&](auto v) KVL_PART {
        of[r.value][v.value] = AddDots(of[r.value][v.value], numbers[v.value], weights);
      });
    });
  }
};

// How many vectors of numbers the rows of a tile meet together: a power of two with which sums fill
// half of the registers, and at most `most`.
constexpr int DotVecs(int n_rows, int most) {
  int vecs = most;
  while (vecs > 1 && n_rows * vecs > kVecRegisters / 2) vecs /= 2;
  return vecs;
}

constexpr int kPairsAtOnce = 4;  // channels and tokens come in multiples of twice as many

// Adds the dots of kVecs vectors of numbers with the pairs of weights of all rows. at(pair, v) is
// where the numbers of vector v lie.
template <int kRows, int kVecs, typename At>
KVL_INLINE DotSums<kRows, kVecs> DotPairs(int n_pairs, const int16_t* weights, const At& at) {
  DotSums<kRows, kVecs> sums;
  sums.Clear();
  for (int pair = 0; pair < n_pairs; pair += kPairsAtOnce) {
    Unroll<kPairsAtOnce>([&](auto i) KVL_PART {
      IntVec numbers[kVecs];
      Unroll<kVecs>([&](auto v)
                        KVL_PART { numbers[v.value] = LoadWords(at(pair + i.value, v.value)); });
      sums.Add(numbers, weights + 2 * (pair + i.value));
    });
  }
  return sums;
}

// Calls use(token, sums) with the sums of n_pairs pairs of channels for tokens [begin, end), which
// are multiples of 16, some vectors at a time. `numbers` begins with the first pair.
template <int kRows, int kVecs = DotVecs(kRows, kBlockSize / kLanes), typename F>
KVL_INLINE void DotTokens(const int16_t* numbers, int n_pairs, const int16_t* weights, int begin,
                          int end, const F& use) {
  int token = begin;
  for (; token + kVecs * kLanes <= end; token += kVecs * kLanes) {
    const int16_t* first = numbers + 2 * token;
    use(token, DotPairs<kRows, kVecs>(n_pairs, weights, [&](int pair, int v) KVL_PART {
          return first + pair * kKeyPairWords + 2 * kLanes * v;
        }));
  }
  if constexpr (kVecs > 1) {
    if (token < end) DotTokens<kRows, kVecs / 2>(numbers, n_pairs, weights, token, end, use);
  }
}

// Calls use(channel, sums) with the sums over all tokens of channels [begin, end), which are
// multiples of 16.
template <int kRows, int kVecs = DotVecs(kRows, 4 * 16 / kLanes), typename F>
KVL_INLINE void DotChannels(const int16_t* numbers, const int16_t* weights, int begin, int end,
                            const F& use) {
  constexpr int kColumnVecs = 16 / kLanes;
  int channel = begin;
  for (; channel + kVecs * kLanes <= end; channel += kVecs * kLanes) {
    const int16_t* first = numbers + channel / 16 * kColumnWords;
    use(channel, DotPairs<kRows, kVecs>(kBlockSize / 2, weights, [&](int pair, int v) KVL_PART {
          return first + v / kColumnVecs * kColumnWords + 32 * pair + v % kColumnVecs * 2 * kLanes;
        }));
  }
  if constexpr (kVecs > kColumnVecs) {
    if (channel < end) DotChannels<kRows, kVecs / 2>(numbers, weights, channel, end, use);
  }
}

}  // namespace
}  // namespace kvlathe
