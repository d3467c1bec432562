// Products with the residual of a run, and what makes columns orthonormal, for the instruction set
// that the including file is compiled for.
#pragma once

#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_vectors.h"

namespace kvlathe {
namespace {

// y[column][16 line + i] += sum over pairs and members j of
//     m[pair][line][2 i + j] * z[column][2 pair + j]
template <int kColumns>
void SumOverPairs(const float* m, PairGrid grid, const float* z, int64_t z_stride, float* y,
                  int64_t y_stride) {
  for (int line = 0; line < grid.n_lines; ++line) {
    Floats a[kColumns], b[kColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) a[j] = b[j] = Splat(0.0f);
    const float* words = m + line * kLineWords;
    for (int pair = 0; pair < grid.n_pairs; ++pair, words += grid.n_lines * kLineWords) {
      const Floats m_a = Load(words), m_b = Load(words + kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        const Floats factor = SplatPair(z + j * z_stride + 2 * pair);
        a[j] = a[j] + m_a * factor;
        b[j] = b[j] + m_b * factor;
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      float* const to = y + j * y_stride + line * kLanes;
      Store(Load(to) + (EverySecond<0>(a[j], b[j]) + EverySecond<1>(a[j], b[j])), to);
    }
  }
}

// y[column][2 pair + j] += sum over blocks, lines and i of
//     m[block][pair][line][2 i + j] * z[column][block][line][2 i + j]
template <int kColumns>
void SumOverLines(const float* m, PairGrid grid, int n_blocks, const float* z, int64_t z_stride,
                  float* y, int64_t y_stride) {
  const int64_t line_words = grid.n_lines * kLineWords;
  for (int pair = 0; pair < grid.n_pairs; ++pair) {
    Floats a[kColumns], b[kColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) a[j] = b[j] = Splat(0.0f);
    for (int64_t block = 0; block < n_blocks; ++block) {
      const float* words = m + (block * grid.n_pairs + pair) * line_words;
      const float* factors = z + block * line_words;
      for (int64_t i = 0; i < line_words; i += kLineWords) {
        const Floats m_a = Load(words + i), m_b = Load(words + i + kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) {
          a[j] = a[j] + m_a * Load(factors + j * z_stride + i);
          b[j] = b[j] + m_b * Load(factors + j * z_stride + i + kLanes);
        }
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const Pair sum = FoldPairs(a[j] + b[j], Sum());
      y[j * y_stride + 2 * pair] += sum.even;
      y[j * y_stride + 2 * pair + 1] += sum.odd;
    }
  }
}

// Writes every element twice, so that both members of a pair are multiplied with it.
void Double(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[2 * i] = to[2 * i + 1] = from[i];
}

void SetZero(int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = 0.0f;
}

template <int kColumns>
void MultiplyColumns(const ResidualParams& p, int first) {
  const int64_t n_tokens = int64_t{p.n_blocks} * kBlockSize;
  const int64_t rank = p.is_key ? 2 * p.grid.n_pairs : kLanes * p.grid.n_lines;
  float* const q = p.q + first * n_tokens;
  const float* const from = p.p + first * rank;
  SetZero(kColumns * n_tokens, q);
  if (!p.is_key) Double(from, kColumns * rank, p.doubled);
  for (int64_t block = 0; block < p.n_blocks; ++block) {
    const float* const r = p.r + block * kBlockSize * rank;
    float* const to = q + block * kBlockSize;
    if (p.is_key) {
      SumOverPairs<kColumns>(r, p.grid, from, rank, to, n_tokens);
    } else {
      SumOverLines<kColumns>(r, p.grid, 1, p.doubled, 2 * rank, to, n_tokens);
    }
  }
}

template <int kColumns>
void MultiplyTransposedColumns(const ResidualParams& p, int first) {
  const int64_t n_tokens = int64_t{p.n_blocks} * kBlockSize;
  const int64_t rank = p.is_key ? 2 * p.grid.n_pairs : kLanes * p.grid.n_lines;
  const float* const from = p.q + first * n_tokens;
  float* const to = p.p + first * rank;
  SetZero(kColumns * rank, to);
  if (p.is_key) {
    Double(from, kColumns * n_tokens, p.doubled);
    SumOverLines<kColumns>(p.r, p.grid, p.n_blocks, p.doubled, 2 * n_tokens, to, rank);
    return;
  }
  for (int64_t block = 0; block < p.n_blocks; ++block) {
    SumOverPairs<kColumns>(p.r + block * kBlockSize * rank, p.grid, from + block * kBlockSize,
                           n_tokens, to, rank);
  }
}

// How many columns are multiplied together. Their sums, two times sixteen lanes each, and a line
// stay in registers.
constexpr int kColumnsTogether = kVectorLanes / 4;

template <int kColumns>
void MultiplyFrom(const ResidualParams& p, int first) {
  for (; first + kColumns <= p.n_columns; first += kColumns) MultiplyColumns<kColumns>(p, first);
  if constexpr (kColumns > 1) MultiplyFrom<kColumns / 2>(p, first);
}
void Multiply(const ResidualParams& p) { MultiplyFrom<kColumnsTogether>(p, 0); }

template <int kColumns>
void MultiplyTransposedFrom(const ResidualParams& p, int first) {
  for (; first + kColumns <= p.n_columns; first += kColumns) {
    MultiplyTransposedColumns<kColumns>(p, first);
  }
  if constexpr (kColumns > 1) MultiplyTransposedFrom<kColumns / 2>(p, first);
}
void MultiplyTransposed(const ResidualParams& p) { MultiplyTransposedFrom<kColumnsTogether>(p, 0); }

double Dot(const float* a, const float* b, int64_t n) {
  constexpr int kHalfLanes = kVectorLanes / 2;
  DoubleVector sums[kLanes / kHalfLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < kLanes / kHalfLanes; ++j) {
      const auto x = LoadAs<HalfFloatVector>(a + i + j * kHalfLanes);
      const auto y = LoadAs<HalfFloatVector>(b + i + j * kHalfLanes);
      sums[j] +=
          __builtin_convertvector(x, DoubleVector) * __builtin_convertvector(y, DoubleVector);
    }
  }
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane / kHalfLanes][lane % kHalfLanes];
  return sum;
}

void AddScaled(float factor, const float* x, int64_t n, float* y) {
  const Floats factors = Splat(factor);
  for (int64_t i = 0; i < n; i += kLanes) Store(Load(y + i) + factors * Load(x + i), y + i);
}

void Scale(float factor, int64_t n, float* y) {
  const Floats factors = Splat(factor);
  for (int64_t i = 0; i < n; i += kLanes) Store(factors * Load(y + i), y + i);
}

float MaxAbs(const float* x, int64_t n) {
  Floats highs = Splat(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    highs = Higher()(FromBits(BitsOf(Load(x + i)) & Splat(0x7fffffff)), highs);
  }
  const Pair highest = FoldPairs(highs, Higher());
  return highest.even > highest.odd ? highest.even : highest.odd;
}

}  // namespace
}  // namespace kvlathe
