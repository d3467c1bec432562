// Under ThreadSanitizer the fibre runtime finds what a GPU may do in another order: each mistake
// here is planted, and the report must name its line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/simt/simt.h"

namespace kvlathe::simt {
namespace {

enum class Order { kBarrier, kWarp, kShuffle, kNone };

struct SumParams {
  const float* x = nullptr;
  float* sum = nullptr;
  Order order = Order::kBarrier;
};

constexpr int kWriteLine = __LINE__ + 5;
// The first thread adds up what all of the block have written into shared memory.
KVL_KERNEL(64) SumShared(KVL_PARAMS(SumParams) p) {
  auto* const shared = reinterpret_cast<float*>(Shared());
  // Here they write it:
  shared[ThreadIdx()] = p.x[ThreadIdx()];
  if (p.order == Order::kBarrier) SyncBlock();
  if (p.order == Order::kWarp) SyncWarp();
  if (p.order == Order::kShuffle) static_cast<void>(SumOfWarp(0));
  if (ThreadIdx() == 0) {
    float sum = 0;
    for (int i = 0; i < BlockDim(); ++i) sum += shared[i];
    *p.sum = sum;
  }
}

float SumOf(int n_threads, Order order) {
  std::vector<float> x(n_threads);
  std::iota(x.begin(), x.end(), 0.0f);
  float sum = 0;
  RunGrid({.n_blocks = 3, .n_threads = n_threads, .shared_bytes = n_threads * 4}, [&] {
    SumShared({x.data(), &sum, order});
  });
  return sum;
}

[[noreturn]] void SumAndExit(int n_threads, Order order) {
  SumOf(n_threads, order);
  std::exit(0);
}

class SimtRaceTest : public ::testing::Test {
 protected:
  // A child that is forked beside fibres would see nothing.
  SimtRaceTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static constexpr int kFound = 66;  // what a program exits with in which races were found
};
using SimtRaceDeathTest = SimtRaceTest;

TEST_F(SimtRaceTest, BarriersOrder) {
  EXPECT_EQ(SumOf(64, Order::kBarrier), 2016);
  EXPECT_EQ(SumOf(32, Order::kWarp), 496);
}

TEST_F(SimtRaceDeathTest, ARemovedBarrierIsNamed) {
  const std::string report =
      fmt::format("data race(.|\n)*SumShared(.|\n)*simt_race_test.cc:{}", kWriteLine);
  EXPECT_EXIT(SumAndExit(64, Order::kNone), ::testing::ExitedWithCode(kFound), report);
}

TEST_F(SimtRaceDeathTest, AMeetingOfWarpsAloneIsNotEnough) {
  EXPECT_EXIT(SumAndExit(64, Order::kWarp), ::testing::ExitedWithCode(kFound), "data race");
}

TEST_F(SimtRaceDeathTest, AShuffleOrdersNoMemory) {
  EXPECT_EXIT(SumAndExit(32, Order::kShuffle), ::testing::ExitedWithCode(kFound), "data race");
}

}  // namespace
}  // namespace kvlathe::simt
