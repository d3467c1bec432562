#include "cpu/kernels/limits/machine_limits.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <span>

#include "base/clock.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using dnnl::matmul;
using dnnl::memory;

constexpr int kRepeats = 3;

uint64_t ReadWords(const std::byte* data, int64_t n_bytes) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[4] = {};
  for (int64_t i = 0; i < n_bytes / 8; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] ^= words[i + j];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

constexpr ReadLoop kPortableReadLoops[] = {{"words", ReadWords}};

std::span<const ReadLoop> ReadLoopsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return {kReadLoopsOfAvx2, kVectorReadLoops};
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return {kReadLoopsOfAvx512, kVectorReadLoops};
  }
  return kPortableReadLoops;
}

matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine, memory::data_type type,
                                      memory::dim n_rows, memory::dim n_in, memory::dim n_out) {
  const memory::desc x({n_rows, n_in}, type, memory::format_tag::ab);
  const memory::desc w({n_in, n_out}, type, memory::format_tag::any);
  const memory::desc y({n_rows, n_out}, memory::data_type::f32, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  return matmul::primitive_desc(engine, x, w, y);
#else
  return matmul::primitive_desc(matmul::desc(x, w, y), engine);
#endif
}

// Memory for `desc` filled with small values: zeros, denormals or NaN could run at another speed.
StatusOr<Buffer> MakeOperand(const memory::desc& desc, memory::data_type type) {
  KVL_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(static_cast<int64_t>(desc.get_size()),
                                                       "a matrix of the GEMM measurement"));
  if (type == memory::data_type::bf16) {
    std::fill_n(buffer.as<Bf16>(), buffer.n_bytes() / 2, ToBf16(0.5f));
  } else {
    std::fill_n(buffer.as<float>(), buffer.n_bytes() / 4, 0.5f);
  }
  return buffer;
}

StatusOr<double> MeasureGemm(const dnnl::engine& engine, memory::data_type type, memory::dim n_rows,
                             memory::dim n_in, memory::dim n_out) {
  const matmul::primitive_desc pd = DescribeMatmul(engine, type, n_rows, n_in, n_out);
  KVL_ASSIGN_OR_RETURN(Buffer x, MakeOperand(pd.src_desc(), type));
  KVL_ASSIGN_OR_RETURN(Buffer w, MakeOperand(pd.weights_desc(), type));
  KVL_ASSIGN_OR_RETURN(Buffer y, MakeOperand(pd.dst_desc(), memory::data_type::f32));
  matmul product(pd);
  dnnl::stream stream(engine);
  double best_seconds = 1e30;
  for (int i = 0; i < kRepeats + 1; ++i) {
    const Stopwatch watch;
    product.execute(stream, {{DNNL_ARG_SRC, memory(pd.src_desc(), engine, x.data())},
                             {DNNL_ARG_WEIGHTS, memory(pd.weights_desc(), engine, w.data())},
                             {DNNL_ARG_DST, memory(pd.dst_desc(), engine, y.data())}});
    stream.wait();
    best_seconds = std::min(best_seconds, watch.Seconds());
  }
  return 2.0 * static_cast<double>(n_rows) * static_cast<double>(n_in) *
         static_cast<double>(n_out) / best_seconds;
}

}  // namespace

double ReadPassSeconds(ThreadPool& pool, Isa isa, const std::byte* data, int64_t n_bytes) {
  static std::atomic<uint64_t> checksum = 0;  // keeps the loads
  double best_seconds = 1e30;
  for (const ReadLoop& loop : ReadLoopsOf(isa)) {
    const Stopwatch watch;
    pool.Run([&](int id) {
      const Range r = ShareOf(n_bytes, kReadLoopStep, id, pool.n_workers());
      checksum += loop.read(data + r.begin, r.end - r.begin);
    });
    best_seconds = std::min(best_seconds, watch.Seconds());
  }
  return best_seconds;
}

StatusOr<double> MeasureReadBandwidth(ThreadPool& pool, Isa isa) {
  KVL_ASSIGN_OR_RETURN(Buffer buffer,
                       Buffer::Allocate(kReadWorkingSetBytes, "the read bandwidth measurement"));
  // Written first, so that pages exist, and on the memory node of the worker that reads them.
  pool.Run([&](int id) {
    const Range r = ShareOf(buffer.n_bytes(), kReadLoopStep, id, pool.n_workers());
    std::memset(buffer.data() + r.begin, 1, r.end - r.begin);
  });
  double best_seconds = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    best_seconds =
        std::min(best_seconds, ReadPassSeconds(pool, isa, buffer.data(), buffer.n_bytes()));
  }
  return static_cast<double>(buffer.n_bytes()) / best_seconds * 1e-9;
}

double MeasureIntegerPeak(ThreadPool& pool, Isa isa) {
  static std::atomic<int64_t> checksum = 0;  // keeps the dots
  if (isa == Isa::kScalar) return 0;
  const IntegerDots& dots = isa == Isa::kAvx2 ? kIntegerDotsOfAvx2 : kIntegerDotsOfAvx512;
  constexpr int64_t kSteps = 4'000'000;
  double best_seconds = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const Stopwatch watch;
    pool.Run([&](int) { checksum += dots.run(kSteps); });
    best_seconds = std::min(best_seconds, watch.Seconds());
  }
  return static_cast<double>(kSteps * dots.dots_of_step * pool.n_workers()) / best_seconds;
}

StatusOr<double> MeasureGemmPeak(ThreadPool& pool, Isa isa) {
  const auto type = HasBf16Dots(isa) ? memory::data_type::bf16 : memory::data_type::f32;
  const int n_threads_before = omp_get_max_threads();
  omp_set_num_threads(pool.n_workers());
  double best = 0;
  Status status;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    for (const auto& [n_rows, n_in, n_out] : {std::array<memory::dim, 3>{512, 2048, 8192},
                                              {2048, 2048, 2048},
                                              {512, 8192, 2048},
                                              {256, 1024, 4096}}) {
      const StatusOr<double> rate = MeasureGemm(engine, type, n_rows, n_in, n_out);
      if (!rate.ok()) status = rate.status();
      best = std::max(best, rate.value_or(0));
    }
  } catch (const dnnl::error& e) {
    status = Error(StatusCode::kInternal, "oneDNN failed in the GEMM measurement: {}", e.what());
  }
  omp_set_num_threads(n_threads_before);
  KVL_RETURN_IF_ERROR(status);
  return best;
}

}  // namespace kvlathe
