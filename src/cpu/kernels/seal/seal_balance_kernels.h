// Variances of tiles, for the instruction set that the including file is compiled for.
#pragma once

#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_vectors.h"

namespace kvlathe {
namespace {

// Sums over the pairs of a tile, of 32 words: f(pair, words) gives those of a pair.
template <typename F>
KVL_INLINE Floats SumOfPairs(int n_pairs, const F& f) {
  Floats a = Splat(0.0f), b = a;
  for (int pair = 0; pair < n_pairs; ++pair) {
    Floats of_a, of_b;
    f(pair, &of_a, &of_b);
    a = a + of_a;
    b = b + of_b;
  }
  return EverySecond<0>(a, b) + EverySecond<1>(a, b);
}

void ElementVariances(const float* x, int n_pairs, int n_words, const float* factors,
                      float* variances) {
  const float n = static_cast<float>(2 * n_pairs);
  for (int first = 0; first < n_words; first += kLineWords) {
    const auto read = [&](int pair, Floats* a, Floats* b) __attribute__((always_inline)) {
      const float* const words = x + static_cast<int64_t>(pair) * n_words + first;
      const Floats factor = SplatPair(factors + 2 * pair);
      *a = Load(words) * factor;
      *b = Load(words + kLanes) * factor;
    };
    float means[kLanes], twice[kLineWords];
    Store(SumOfPairs(n_pairs, read) / Splat(n), means);
    for (int i = 0; i < kLanes; ++i) twice[2 * i] = twice[2 * i + 1] = means[i];
    const Floats mean_a = Load(twice), mean_b = Load(twice + kLanes);
    const auto squares = [&](int pair, Floats* a, Floats* b) __attribute__((always_inline)) {
      read(pair, a, b);
      *a = *a - mean_a;
      *b = *b - mean_b;
      *a = *a * *a;
      *b = *b * *b;
    };
    Store(SumOfPairs(n_pairs, squares) / Splat(n - 1), variances + first / 2);
  }
}

void MemberVariances(const float* x, int n_pairs, int n_words, const float* twice,
                     float* variances) {
  const float n = static_cast<float>(n_words / 2);
  for (int pair = 0; pair < n_pairs; ++pair, x += n_words) {
    Floats a = Splat(0.0f), b = a;
    for (int i = 0; i < n_words; i += kLineWords) {
      a = a + Load(x + i) * Load(twice + i);
      b = b + Load(x + i + kLanes) * Load(twice + i + kLanes);
    }
    const Pair sums = FoldPairs(a + b, Sum());
    const float means[2] = {sums.even / n, sums.odd / n};
    const Floats mean = SplatPair(means);
    a = b = Splat(0.0f);
    for (int i = 0; i < n_words; i += kLineWords) {
      const Floats d = Load(x + i) * Load(twice + i) - mean;
      const Floats e = Load(x + i + kLanes) * Load(twice + i + kLanes) - mean;
      a = a + d * d;
      b = b + e * e;
    }
    const Pair squares = FoldPairs(a + b, Sum());
    variances[2 * pair] = squares.even / (n - 1);
    variances[2 * pair + 1] = squares.odd / (n - 1);
  }
}

void DivideElements(const float* twice, PairGrid grid, float* x) {
  const int n_words = grid.n_lines * kLineWords;
  for (int pair = 0; pair < grid.n_pairs; ++pair, x += n_words) {
    for (int i = 0; i < n_words; i += kLanes) Store(Load(x + i) / Load(twice + i), x + i);
  }
}

}  // namespace
}  // namespace kvlathe
