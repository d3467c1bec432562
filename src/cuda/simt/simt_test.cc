// The fibre runtime: what lanes and threads do together, and what it says of mistakes.
#include "cuda/simt/simt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cuda/emulated/emulated_runtime.h"
#include "cuda/simt/launch.h"

namespace kvlathe::simt {
namespace {

struct SumParams {
  const float* x = nullptr;
  float* sums = nullptr;  // one a block
  bool meets = true;      // at the barrier
};

// Sums 64 numbers a block through shared memory.
KVL_KERNEL(64) SumBlock(KVL_PARAMS(SumParams) p) {
  auto* const shared = reinterpret_cast<float*>(Shared());
  const float sum = SumOfWarp(p.x[BlockIdx() * 64 + ThreadIdx()]);
  if (Lane() == 0) shared[WarpIdx()] = sum;
  if (p.meets) SyncBlock();
  if (ThreadIdx() == 0) p.sums[BlockIdx()] = shared[0] + shared[1];
}

std::vector<float> Sums(bool meets) {
  std::vector<float> x(8 * 64), sums(8);
  std::iota(x.begin(), x.end(), 0.0f);
  RunGrid({.n_blocks = 8, .n_threads = 64, .shared_bytes = 8},
          [&] { SumBlock({.x = x.data(), .sums = sums.data(), .meets = meets}); });
  return sums;
}

TEST(SimtTest, BlocksSum) {
  const std::vector<float> sums = Sums(true);
  for (int block = 0; block < 8; ++block) EXPECT_EQ(sums[block], 2016 + 4096 * block);
}

#if !defined(__SANITIZE_THREAD__)  // which says so itself (simt_race_test.cc)
TEST(SimtTest, AForgottenBarrierShows) {
  const std::vector<float> sums = Sums(false);
  EXPECT_TRUE(std::ranges::any_of(sums, [](float sum) { return std::isnan(sum); }));
}
#endif

struct MmaParams {
  const float* a = nullptr;  // [16][16]
  const float* b = nullptr;  // [16][8]
  float* c = nullptr;        // [16][8]
};

KVL_KERNEL(32) Multiply(KVL_PARAMS(MmaParams) p) {
  const int g = Lane() / 4, i = Lane() % 4 * 2;
  const auto pair = [](const float* x) { return PackBf16(x[0], x[1]); };
  const uint32_t a[4] = {pair(p.a + g * 16 + i), pair(p.a + (g + 8) * 16 + i),
                         pair(p.a + g * 16 + i + 8), pair(p.a + (g + 8) * 16 + i + 8)};
  const uint32_t b[2] = {PackBf16(p.b[i * 8 + g], p.b[(i + 1) * 8 + g]),
                         PackBf16(p.b[(i + 8) * 8 + g], p.b[(i + 9) * 8 + g])};
  float c[4] = {1, 1, 1, 1};
  MmaBf16(c, a, b);
  p.c[g * 8 + i] = c[0];
  p.c[g * 8 + i + 1] = c[1];
  p.c[(g + 8) * 8 + i] = c[2];
  p.c[(g + 8) * 8 + i + 1] = c[3];
}

TEST(SimtTest, WarpsMultiplyMatrices) {
  std::vector<float> a(256), b(128), c(128);
  for (int i = 0; i < 256; ++i) a[i] = static_cast<float>(i % 7 - 3);
  for (int i = 0; i < 128; ++i) b[i] = static_cast<float>(i % 5 - 2);
  RunGrid({}, [&] { Multiply({a.data(), b.data(), c.data()}); });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 1;
      for (int k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[k * 8 + column];
      EXPECT_EQ(c[row * 8 + column], sum);
    }
  }
}

struct MatrixParams {
  const uint16_t* numbers = nullptr;  // [32][8]
  uint32_t* plain = nullptr;          // [32][4]
  uint32_t* transposed = nullptr;     // [32][4]
};

KVL_KERNEL(32) LoadAll(KVL_PARAMS(MatrixParams) p) {
  auto* const shared = reinterpret_cast<uint16_t*>(Shared());
  CopyAsync16(shared + Lane() * 8, p.numbers + Lane() * 8);
  CommitCopies();
  WaitCopies<0>();
  SyncWarp();
  uint32_t r[4];
  LoadMatrices<false>(r, shared + Lane() * 8);
  for (int m = 0; m < 4; ++m) p.plain[Lane() * 4 + m] = r[m];
  LoadMatrices<true>(r, shared + Lane() * 8);
  for (int m = 0; m < 4; ++m) p.transposed[Lane() * 4 + m] = r[m];
}

TEST(SimtTest, MatricesComeFromSharedMemory) {
  alignas(16) uint16_t numbers[256];
  for (int i = 0; i < 256; ++i) numbers[i] = static_cast<uint16_t>(i);
  std::vector<uint32_t> plain(128), transposed(128);
  RunGrid({.shared_bytes = 512}, [&] { LoadAll({numbers, plain.data(), transposed.data()}); });
  for (int lane = 0; lane < 32; ++lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t first = m * 64 + row * 8 + column, other = m * 64 + column * 8 + row;
      EXPECT_EQ(plain[lane * 4 + m], first | (first + 1) << 16);
      EXPECT_EQ(transposed[lane * 4 + m], other | (other + 8) << 16);
    }
  }
}

TEST(SimtDeathTest, HalfABlockAtABarrier) {
  EXPECT_DEATH(RunGrid({.n_threads = 64},
                       [] {
                         if (ThreadIdx() < 32) SyncBlock();
                       }),
               "threads wait for others that have ended");
}

TEST(SimtDeathTest, LanesMeetDifferentFunctions) {
  EXPECT_DEATH(RunGrid({},
                       [] {
                         if (Lane() == 3) {
                           SyncWarp();
                         } else {
                           Ballot(true);
                         }
                       }),
               "lanes of a warp meet different functions");
}

class EmulatedRuntimeTest : public ::testing::Test {
 protected:
  EmulatedRuntimeTest() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaMalloc(reinterpret_cast<void**>(&x_), 64 * sizeof(float));
    cudaMalloc(reinterpret_cast<void**>(&sum_), sizeof(float));
  }
  ~EmulatedRuntimeTest() override {
    cudaStreamDestroy(stream_);
    cudaFree(x_);
    cudaFree(sum_);
  }
  cudaStream_t stream_ = nullptr;
  float* x_ = nullptr;
  float* sum_ = nullptr;
};

TEST_F(EmulatedRuntimeTest, RunsKernelsBetweenCopies) {
  const std::vector<float> x(64, 2.0f);
  float sum = 0;
  ASSERT_EQ(cudaMemcpyAsync(x_, x.data(), 256, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  Launch(stream_, SumBlock, {.n_blocks = 1, .n_threads = 64, .shared_bytes = 8},
         SumParams{.x = x_, .sums = sum_});
  ASSERT_EQ(cudaMemcpyAsync(&sum, sum_, 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(sum, 128);
}

TEST_F(EmulatedRuntimeTest, PinnedMemoryIsReadLate) {
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 256), cudaSuccess);
  std::fill_n(pinned, 64, 1.0f);
  ASSERT_EQ(cudaMemcpyAsync(x_, pinned, 256, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  pinned[5] = 100;
  float back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, x_ + 5, 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(back, 100);
  cudaFreeHost(pinned);
}

TEST_F(EmulatedRuntimeTest, ReplaysGraphs) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaMemsetAsync(x_, 0, 256, stream_), cudaSuccess);
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  Launch(stream_, SumBlock, {.n_blocks = 1, .n_threads = 64, .shared_bytes = 8},
         SumParams{.x = x_, .sums = sum_});
  cudaStreamEndCapture(stream_, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  cudaGraphLaunch(exec, stream_);
  float sum = 1;
  ASSERT_EQ(cudaMemcpyAsync(&sum, sum_, 4, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(sum, 0);
  cudaGraphExecDestroy(exec);
}

TEST_F(EmulatedRuntimeTest, CopiesOutsideOfMemoryAreRefused) {
  const float x = 0;
  EXPECT_EQ(cudaMemcpyAsync(sum_ + 64, &x, 4, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
}

KVL_KERNEL(32) Nothing(KVL_PARAMS(int) /*p*/) {}
KVL_KERNEL(32) NothingEither(KVL_PARAMS(int) /*p*/) {}

TEST_F(EmulatedRuntimeTest, RefusesLaunchesAsAGpuDoes) {
  static_cast<void>(cudaGetLastError());  // of tests before
  Launch(stream_, Nothing, {.n_blocks_y = kMostBlocksY}, 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Launch(stream_, Nothing, {.n_blocks_y = kMostBlocksY + 1}, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // it is told once
  Launch(stream_, Nothing, {.shared_bytes = 228 << 10}, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  emulated::SetDeviceCount(2);
  cudaSetDevice(1);
  Launch(stream_, Nothing, {}, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  cudaSetDevice(0);
  emulated::SetDeviceCount(1);
}

// A launch that is collected keeps its shared memory when a later one of the kernel has less.
TEST_F(EmulatedRuntimeTest, SharedMemoryThatIsAllowedStaysSo) {
  Launch(stream_, NothingEither, {.shared_bytes = 100 << 10}, 0);
  Launch(stream_, NothingEither, {.shared_bytes = 60 << 10}, 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

using EmulatedRuntimeDeathTest = EmulatedRuntimeTest;
TEST_F(EmulatedRuntimeDeathTest, TheHostReadsDeviceMemory) {
  EXPECT_DEATH(static_cast<void>(*const_cast<volatile float*>(x_)), "");
}

struct TouchParams {
  float* at = nullptr;
  bool writes = false;
};

KVL_KERNEL(32) Touch(KVL_PARAMS(TouchParams) p) {
  if (ThreadIdx() == 7 && p.writes) *p.at = 1;
  if (ThreadIdx() == 7 && !p.writes && *p.at == 1) SyncWarp();
}

void TouchDevice(float* at, bool writes, cudaStream_t stream) {
  Launch(stream, Touch, {}, TouchParams{at, writes});
  cudaStreamSynchronize(stream);
}

TEST_F(EmulatedRuntimeDeathTest, AKernelWritesBehindItsMemory) {
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(TouchDevice(x_ + 64, true, stream_), "use-after-poison(.|\n)*Touch");
#else
  EXPECT_DEATH(TouchDevice(x_ + 64, true, stream_), "byte 256 of memory of 256 was written");
#endif
}

TEST_F(EmulatedRuntimeDeathTest, AKernelReadsWhereNothingIs) {
  EXPECT_DEATH(TouchDevice(x_ - 64, false, stream_), "");
  EXPECT_DEATH(TouchDevice(x_ + (1 << 20), false, stream_), "");
}

TEST_F(EmulatedRuntimeDeathTest, AKernelReadsFreedMemory) {
  float* large = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&large), 1 << 16), cudaSuccess);
  ASSERT_EQ(cudaFree(large), cudaSuccess);
  EXPECT_DEATH(TouchDevice(large + 4096, false, stream_), "");
}

TEST(SimtDeathTest, AKernelWritesBehindSharedMemory) {
#if defined(__SANITIZE_ADDRESS__)
  const char* const said = "heap-buffer-overflow";
#else
  const char* const said = "wrote behind its shared memory";
#endif
  EXPECT_DEATH(RunGrid({.shared_bytes = 40}, [] { Shared()[ThreadIdx() + 9] = std::byte{1}; }),
               said);
}

}  // namespace
}  // namespace kvlathe::simt
