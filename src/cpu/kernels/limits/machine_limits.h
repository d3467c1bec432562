// What this machine can do at best, measured: the limits that benchmarks divide by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"

namespace kvlathe {

// Bytes of distinct data that a measurement against read bandwidth streams, so that no last-level
// cache holds it.
inline constexpr int64_t kReadWorkingSetBytes = int64_t{1} << 30;

// Highest read bandwidth in GB/s (10^9 bytes) of several vector read loops on all workers of the
// pool over kReadWorkingSetBytes, each worker its own contiguous share. About 2 s.
StatusOr<double> MeasureReadBandwidth(ThreadPool& pool, Isa isa);

// Seconds of the fastest of the same read loops, one pass each, over n_bytes (a multiple of
// kReadLoopStep) of `data`: for benchmarks that measure the limit between their own passes, on a
// machine whose bandwidth drifts.
double ReadPassSeconds(ThreadPool& pool, Isa isa, const std::byte* data, int64_t n_bytes);

// Highest rate in FLOP/s of oneDNN products of several shapes with weights in the format that
// oneDNN prefers, on as many threads as the pool has: of BF16 where `isa` has BF16 dots, else of
// F32. About 2 s at 0.5 TFLOP/s.
StatusOr<double> MeasureGemmPeak(ThreadPool& pool, Isa isa);

// Highest rate of multiplications of bytes per second, on all workers, as products of weights in
// blocks compute them. 0 with Isa::kScalar. About 0.1 s.
double MeasureIntegerPeak(ThreadPool& pool, Isa isa);

// A loop of such dots in registers: n steps of dots_of_step multiplications.
struct IntegerDots {
  int64_t (*run)(int64_t n);
  int dots_of_step;
};
extern const IntegerDots kIntegerDotsOfAvx2;
extern const IntegerDots kIntegerDotsOfAvx512;

// One way of reading memory: returns a value that depends on every byte, so that no load can be
// left out. n_bytes is a multiple of kReadLoopStep.
struct ReadLoop {
  const char* name;
  uint64_t (*read)(const std::byte* data, int64_t n_bytes);
};
inline constexpr int64_t kReadLoopStep = 64 << 10;
inline constexpr int kVectorReadLoops = 6;
extern const ReadLoop* const kReadLoopsOfAvx2;  // [kVectorReadLoops], as the other
extern const ReadLoop* const kReadLoopsOfAvx512;

}  // namespace kvlathe
