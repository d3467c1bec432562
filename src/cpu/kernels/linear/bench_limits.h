// What the benchmarks of products share: the machine and its limits, and how passes are timed.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "cpu/kernels/linear/linear.h"

namespace kvlathe {

// Of KVLATHE_ISA, or the best.
inline Isa BenchIsa() {
  static const Isa isa = SelectIsa().value();
  return isa;
}

inline ThreadPool& BenchPool() {
  static ThreadPool pool(AvailableProcessors());
  return pool;
}

inline double ReadGbPerS() {
  static const double gb_per_s = MeasureReadBandwidth(BenchPool(), BenchIsa()).value();
  return gb_per_s;
}

// Seconds of the best pass of rows [n_rows, n_in] of x_type over all matrices, which are of one
// shape; each pass is an iteration.
inline double BestPassSeconds(benchmark::State& state, const std::vector<PackedMatrix>& matrices,
                              int64_t n_rows, DType x_type, const void* x) {
  const int64_t n_out = matrices.front().n_out(), n_in = matrices.front().n_in();
  Linear linear(&BenchPool(), BenchIsa());
  std::vector<float> y(n_rows * n_out);
  double best = 1e30;
  for (auto _ : state) {
    const Stopwatch watch;
    for (const PackedMatrix& w : matrices) {
      linear.Run({.w = &w,
                  .n_rows = n_rows,
                  .x_type = x_type,
                  .x = x,
                  .x_stride = n_in,
                  .y = y.data(),
                  .y_stride = n_out});
    }
    const double seconds = watch.Seconds();
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  return best;
}

}  // namespace kvlathe
