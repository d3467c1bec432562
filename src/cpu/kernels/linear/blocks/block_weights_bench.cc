// Products with weights in blocks against what the machine can do, in one run: the time of the
// larger of reading their bytes at the measured bandwidth and computing their dots at the measured
// rate of integer dots. Weights are random bytes, >= 1 GiB for few rows. KVLATHE_ISA chooses the
// instruction set.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/linear/bench_limits.h"
#include "cpu/kernels/linear/blocks/block_values.h"

namespace kvlathe {
namespace {

double DotsPerS() {
  static const double rate = MeasureIntegerPeak(BenchPool(), BenchIsa());
  return rate;
}

PackedMatrix RandomMatrix(WeightType type, int64_t n_out, int64_t n_in) {
  PackedMatrix m = PackedMatrix::Create(n_out, n_in, type).value();
  const int64_t row_bytes = n_in / LayoutOfBlocks(type).block * StoredBlockBytes(type);
  Random random(1);
  std::vector<std::byte> row(row_bytes);
  // No bit pattern of 0x3f is a scale that is infinite or NaN.
  for (std::byte& b : row) b = static_cast<std::byte>(random.Below(0x40));
  for (int64_t out = 0; out < n_out; ++out) m.PackBlocks({out, 1, row.data(), row_bytes});
  return m;
}

// Arguments: type, rows, outputs, inputs.
void BM_BlockRows(benchmark::State& state) {
  const auto type = static_cast<WeightType>(state.range(0));
  const int64_t n_rows = state.range(1), n_out = state.range(2), n_in = state.range(3);
  const int64_t matrix_bytes = PackedMatrix::BytesFor(n_out, n_in, type);
  const bool is_few = n_rows <= 16;
  const int64_t n_matrices = is_few ? (kReadWorkingSetBytes + matrix_bytes - 1) / matrix_bytes : 1;
  std::vector<PackedMatrix> matrices;
  for (int64_t i = 0; i < n_matrices; ++i) matrices.push_back(RandomMatrix(type, n_out, n_in));
  std::vector<Bf16> x(n_rows * n_in);
  Random random(2);
  for (Bf16& value : x) value = ToBf16(static_cast<float>(random.Normal()));
  const double best = BestPassSeconds(state, matrices, n_rows, DType::kBf16, x.data());
  const double bytes = static_cast<double>(n_matrices * matrix_bytes);
  const double dots = static_cast<double>(n_matrices * n_rows * n_out) * static_cast<double>(n_in);
  state.counters["gb_per_s"] = bytes / best * 1e-9;
  state.counters["read_gb_per_s"] = ReadGbPerS();
  state.counters["gdots_per_s"] = dots / best * 1e-9;
  state.counters["peak_gdots_per_s"] = DotsPerS() * 1e-9;
  const double bound = std::max(is_few ? bytes / ReadGbPerS() * 1e-9 : 0.0, dots / DotsPerS());
  state.counters["fraction_of_roof"] = bound / best;
  state.SetLabel(std::string(WeightTypeName(type)));
}

void AllTypes(benchmark::internal::Benchmark* bench) {
  for (int type = static_cast<int>(WeightType::kQ4_0); type <= static_cast<int>(WeightType::kMxfp4);
       ++type) {
    bench->Args({type, 1, 4096, 4096});
  }
  for (const WeightType type : {WeightType::kQ8_0, WeightType::kQ4_K, WeightType::kQ6_K}) {
    for (const int64_t n_rows : {2, 4, 8, 16, 64, 512}) {
      bench->Args({static_cast<int>(type), n_rows, 4096, 4096});
    }
  }
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kQ4_K}) {
    bench->Args({static_cast<int>(type), 512, 1536, 1536});
    bench->Args({static_cast<int>(type), 512, 1536, 8960 / 256 * 256});
  }
}
BENCHMARK(BM_BlockRows)
    ->ArgNames({"type", "rows", "out", "in"})
    ->Apply(AllTypes)
    ->UseManualTime()
    ->Iterations(3)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvlathe
