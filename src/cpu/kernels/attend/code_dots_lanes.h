// Integer dots of codes with rows of weights, over vectors of lanes.h. line_reader_lanes.h makes
// numbers of 16 bits of codes, and they are multiplied with weights of 16 bits.
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

// --- Dots. ---

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
  // Stores sum * unit + constant of each row as its scores; `scores` are those of vector `v`.
  KVL_INLINE void StoreScores(int v, const float* units, const float* constants,
                              float* scores) const {
    Unroll<kRows>([&](auto r) KVL_PART {
      Store(scores + r.value * kBlockSize,
            Fma(ToFloats(of[r.value][v]), Set1(units[r.value]), Set1(constants[r.value])));
    });
  }
};

template <int kRows>
using LineSums = DotSums<kRows, kLineParts>;

// Tokens [16 column, 16 column + 16) of n_channels of K; `codes` begin with the first of them.
template <typename Reader, int kRows>
KVL_INLINE void AddKeyDots(const Reader& reader, const std::byte* codes, int64_t ahead,
                           int n_channels, int column, const int16_t* weights,
                           LineSums<kRows>* sums) {
  constexpr int kLines = Reader::kLines;
  constexpr int kPairs = kLines >= 4 ? kLines / 4 : 1;
  constexpr int kGroups = kLines >= 4 ? 1 : 4 / kLines;  // of a pair
  const int line = column % kLines;
  codes += column / kLines * reader.kBytes;
  for (int pair = 0; pair < n_channels / 2; pair += kPairs) {
    PrefetchLine(codes + ahead);
    Unroll<kPairs>([&](auto i) KVL_PART {
      IntVec numbers[kLineParts];
      Unroll<kLineParts>([&](auto part) KVL_PART {
        numbers[part.value] = reader.Line(codes, line + 4 * i.value, part.value);
      });
      sums->Add(numbers, weights + 2 * (pair + i.value));
    });
    codes += kGroups * reader.kBytes;
  }
}

// The sums of part `part` of columns kColumn and kColumn + 2 of n_channels of K. The lines that
// UnitReader reads together belong to both of them, or to one.
template <int kColumn, int kBits, int kRows>
KVL_INLINE void AddKeyDots(const UnitReader<kBits>& reader, const std::byte* codes, int64_t ahead,
                           int n_channels, int part, const int16_t* weights,
                           DotSums<kRows, 2>* sums) {
  constexpr int kLines = UnitReader<kBits>::kLines, kHalf = UnitReader<kBits>::kHalf;
  constexpr int kPairs = kLines >= 4 ? kLines / 4 : 1;
  for (int pair = 0; pair < n_channels / 2; pair += kPairs, weights += 2 * kPairs) {
    PrefetchLine(codes + ahead);
    if constexpr (kLines == 2) {
      const TwoLines before = reader.Lines(codes, 0, part);
      const TwoLines behind = reader.Lines(codes + reader.kBytes, 0, part);
      if constexpr (kColumn == 0) {
        sums->Add({before.first, behind.first}, weights);
      } else {
        sums->Add({before.second, behind.second}, weights);
      }
      codes += 2 * reader.kBytes;
    } else if constexpr (kLines == 4) {
      const TwoLines lines = reader.Lines(codes, kColumn, part);
      sums->Add({lines.first, lines.second}, weights);
      codes += reader.kBytes;
    } else {
      Unroll<kHalf / 4>([&](auto i) KVL_PART {
        const TwoLines near = reader.Lines(codes, 4 * i.value + kColumn, part);
        const TwoLines far = reader.Lines(codes, 4 * i.value + kColumn + 2, part);
        sums->Add({near.first, far.first}, weights + 2 * i.value);
        sums->Add({near.second, far.second}, weights + 2 * i.value + kHalf / 2);
      });
      codes += reader.kBytes;
    }
  }
}

// The sums of 16 channels of V. Groups of the same channels lie `step` bytes apart.
template <typename Reader, int kRows>
KVL_INLINE void AddValueDots(const Reader& reader, const std::byte* codes, int64_t step,
                             int64_t ahead, const int16_t* weights, LineSums<kRows>* sums) {
  for (int pair = 0; pair < kBlockSize / 2; pair += reader.kLines) {
    PrefetchLine(codes + ahead);
    Unroll<Reader::kHalf>([&](auto line) KVL_PART {
      IntVec first[kLineParts], second[kLineParts];
      Unroll<kLineParts>([&](auto part) KVL_PART {
        const TwoLines lines = reader.Lines(codes, line.value, part.value);
        first[part.value] = lines.first, second[part.value] = lines.second;
      });
      sums->Add(first, weights + 2 * (pair + line.value));
      sums->Add(second, weights + 2 * (pair + line.value + reader.kHalf));
    });
    codes += step;
  }
}

}  // namespace
}  // namespace kvlathe
