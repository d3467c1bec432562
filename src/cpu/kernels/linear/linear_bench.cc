// Linear layers against the limits of the machine, all in one run:
//   many rows: our time over a bare oneDNN call with weights in its preferred format on all threads
//   few rows:  bytes of weights per second over read bandwidth, and over the lower of it and the
//              rate that the GEMM peak allows, over >= 1 GiB of distinct weights
// Each repetition alternates both sides, so that drift of the machine cancels in the ratio; the
// ratio is of the best times. KVLATHE_ISA chooses the instruction set.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cpu/kernels/linear/bench_limits.h"

namespace kvlathe {
namespace {

// A figure above its limit means that the limit was measured wrongly.
constexpr double kMaxFraction = 1.05;
// OpenMP's threads spin on our processors for a while after a bare call.
constexpr std::chrono::milliseconds kOpenMpSpin(10);

double GemmPeakFlopPerS(DType type) {
  static const double f32 = MeasureGemmPeak(BenchPool(), Isa::kAvx2).value();
  static const double best = MeasureGemmPeak(BenchPool(), BenchIsa()).value();
  return type == DType::kF32 ? f32 : best;
}

std::vector<std::byte> RandomValues(DType type, int64_t n) {
  Random random(n);
  std::vector<std::byte> values(n * SizeOf(type));
  for (int64_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(random.Uniform()) - 0.5f;
    ConvertFromFloat(type, &value, 1, &values[i * SizeOf(type)]);
  }
  return values;
}

PackedMatrix RandomMatrix(DType type, int64_t n_out, int64_t n_in) {
  PackedMatrix m = PackedMatrix::Create(n_out, n_in, DenseWeights(type)).value();
  const std::vector<std::byte> row = RandomValues(type, n_in);
  for (int64_t out = 0; out < n_out; ++out) m.PackRows(out, 1, type, row.data(), n_in);
  return m;
}

// A bare oneDNN call as an application would make it.
class BareProduct {
 public:
  BareProduct(DType type, int64_t n_rows, int64_t n_out, int64_t n_in)
      : x_(RandomValues(type, n_rows * n_in)),
        primitive_desc_(Describe(engine_, DnnlType(type), n_rows, n_out, n_in)),
        primitive_(primitive_desc_),
        weights_(primitive_desc_.weights_desc(), engine_) {
    std::vector<std::byte> w = RandomValues(type, n_out * n_in);
    dnnl::memory plain({{n_in, n_out}, DnnlType(type), dnnl::memory::format_tag::ba}, engine_,
                       w.data());
    dnnl::reorder(plain, weights_).execute(stream_, plain, weights_);
    stream_.wait();
  }

  void Run(float* y) {
    primitive_.execute(
        stream_, {{DNNL_ARG_SRC, dnnl::memory(primitive_desc_.src_desc(), engine_, x_.data())},
                  {DNNL_ARG_WEIGHTS, weights_},
                  {DNNL_ARG_DST, dnnl::memory(primitive_desc_.dst_desc(), engine_, y)}});
    stream_.wait();
  }

 private:
  static dnnl::memory::data_type DnnlType(DType type) {
    return type == DType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  }

  static dnnl::matmul::primitive_desc Describe(const dnnl::engine& engine,
                                               dnnl::memory::data_type type, int64_t n_rows,
                                               int64_t n_out, int64_t n_in) {
    using dnnl::memory;
    const memory::desc x({n_rows, n_in}, type, memory::format_tag::ab);
    const memory::desc w({n_in, n_out}, type, memory::format_tag::any);
    const memory::desc y({n_rows, n_out}, memory::data_type::f32, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    return dnnl::matmul::primitive_desc(engine, x, w, y);
#else
    return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), engine);
#endif
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<std::byte> x_;
  dnnl::matmul::primitive_desc primitive_desc_;
  dnnl::matmul primitive_;
  dnnl::memory weights_;
};

// Arguments: rows, outputs, inputs, bits of the compute type. time_over_bare < 1 means faster than
// the bare call, which is of F32 where there are no BF16 dots.
void BM_ManyRows(benchmark::State& state) {
  const int64_t n_rows = state.range(0), n_out = state.range(1), n_in = state.range(2);
  const DType type = state.range(3) == 32 ? DType::kF32 : DType::kBf16;
  omp_set_num_threads(BenchPool().n_workers());
  const PackedMatrix w = RandomMatrix(type, n_out, n_in);
  BareProduct bare(HasBf16Dots(BenchIsa()) ? type : DType::kF32, n_rows, n_out, n_in);
  Linear linear(&BenchPool(), BenchIsa());
  const std::vector<std::byte> x = RandomValues(type, n_rows * n_in);
  std::vector<float> y(n_rows * n_out);
  double best_bare = 1e30, best_ours = 1e30;
  for (auto _ : state) {
    Stopwatch watch;
    bare.Run(y.data());
    best_bare = std::min(best_bare, watch.Seconds());
    std::this_thread::sleep_for(kOpenMpSpin);
    watch.Restart();
    linear.Run({.w = &w,
                .n_rows = n_rows,
                .x_type = type,
                .x = x.data(),
                .x_stride = n_in,
                .y = y.data(),
                .y_stride = n_out});
    const double seconds = watch.Seconds();
    best_ours = std::min(best_ours, seconds);
    state.SetIterationTime(seconds);
  }
  const double flop = 2.0 * static_cast<double>(n_rows * n_out) * static_cast<double>(n_in);
  state.counters["gflop_per_s"] = flop / best_ours * 1e-9;
  state.counters["bare_gflop_per_s"] = flop / best_bare * 1e-9;
  state.counters["time_over_bare"] = best_ours / best_bare;
}
BENCHMARK(BM_ManyRows)
    ->ArgNames({"rows", "out", "in", "bits"})
    ->ArgsProduct({{128, 512, 2048}, {8192}, {2048}, {16, 32}})
    ->ArgsProduct({{128, 512, 2048}, {2048}, {8192}, {16, 32}})
    ->UseManualTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);

// Arguments: rows, outputs, inputs, bits of the compute type. One iteration is a pass over >= 1 GiB
// of matrices.
void BM_FewRows(benchmark::State& state) {
  const int64_t n_rows = state.range(0), n_out = state.range(1), n_in = state.range(2);
  const DType type = state.range(3) == 32 ? DType::kF32 : DType::kBf16;
  const int64_t matrix_bytes = n_out * n_in * SizeOf(type);
  const int64_t n_matrices = (kReadWorkingSetBytes + matrix_bytes - 1) / matrix_bytes;
  std::vector<PackedMatrix> matrices;
  for (int64_t i = 0; i < n_matrices; ++i) matrices.push_back(RandomMatrix(type, n_out, n_in));
  const std::vector<std::byte> x = RandomValues(type, n_rows * n_in);
  const double best = BestPassSeconds(state, matrices, n_rows, type, x.data());
  const double bytes = static_cast<double>(n_matrices * matrix_bytes);
  const double fraction = bytes / best * 1e-9 / ReadGbPerS();
  state.counters["working_set_bytes"] = bytes;
  state.counters["gb_per_s"] = bytes / best * 1e-9;
  state.counters["read_gb_per_s"] = ReadGbPerS();
  state.counters["fraction_of_limit"] = fraction;
  // Without matrix tiles the dots of 8 rows take as long as reading the weights: what the lower of
  // both limits allows.
  const double flop_per_byte = 2.0 * static_cast<double>(n_rows) / SizeOf(type);
  const double gemm_gb_per_s = GemmPeakFlopPerS(type) / flop_per_byte * 1e-9;
  state.counters["fraction_of_roof"] = bytes / best * 1e-9 / std::min(ReadGbPerS(), gemm_gb_per_s);
  if (fraction > kMaxFraction) state.SkipWithError("above the measured read bandwidth");
}
BENCHMARK(BM_FewRows)
    ->ArgNames({"rows", "out", "in", "bits"})
    ->ArgsProduct({{1, 2, 4, 8, 12, 16}, {8192}, {2048}, {16, 32}})
    ->ArgsProduct({{1, 2, 4, 8, 12, 16}, {2048}, {8192}, {16, 32}})
    ->UseManualTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvlathe
