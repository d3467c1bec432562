// The largest numbers of rows against those of a sort.
#include "cuda/rows/largest_finder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

class LargestFinderTest : public ::testing::Test {
 protected:
  std::vector<LargestNumbers> Find(const std::vector<float>& rows, int64_t n_rows) {
    const MachineBuffer buffer =
        MachineBuffer::CopyOf(device_.get(), std::as_bytes(std::span(rows)), "rows").value();
    return finder_.Find(
        {.rows = buffer.place(), .n_rows = n_rows, .n_dims = std::ssize(rows) / n_rows});
  }

  std::unique_ptr<CudaStream> stream_ = CudaStream::Create().value();
  std::unique_ptr<CudaDevice> device_ = CudaDevice::Create(stream_.get(), 64 << 20).value();
  LargestFinder finder_{device_.get()};
};

TEST_F(LargestFinderTest, AreThoseOfASort) {
  for (const int n_dims : {5, 64, 4096, 4097, 300000}) {
    Random random(n_dims);
    std::vector<float> rows(2 * n_dims);
    // Many are equal, and zeros have both signs.
    for (float& x : rows) x = std::round(static_cast<float>(3 * random.Normal())) * -0.5f;
    const std::vector<LargestNumbers> found = Find(rows, 2);
    ASSERT_EQ(found.size(), 2u);
    for (int row = 0; row < 2; ++row) {
      const float* const x = rows.data() + row * n_dims;
      std::vector<int32_t> order(n_dims);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int a, int b) { return x[a] > x[b]; });
      ASSERT_EQ(std::ssize(found[row].numbers), std::min(n_dims, LargestPlan::kLargest));
      EXPECT_TRUE(found[row].are_finite);
      for (size_t i = 0; i < found[row].numbers.size(); ++i) {
        EXPECT_EQ(found[row].numbers[i].place, order[i]) << n_dims << " " << i;
        EXPECT_EQ(found[row].numbers[i].value, x[order[i]]);
      }
    }
  }
}

TEST_F(LargestFinderTest, TellsOfNumbersThatAreNotFinite) {
  std::vector<float> rows(3 * 100, 1.0f);
  rows[17] = std::numeric_limits<float>::quiet_NaN();
  rows[299] = -std::numeric_limits<float>::infinity();
  const std::vector<LargestNumbers> found = Find(rows, 3);
  EXPECT_FALSE(found[0].are_finite);
  EXPECT_TRUE(found[1].are_finite);
  EXPECT_FALSE(found[2].are_finite);
}

TEST_F(LargestFinderTest, NothingWithoutMemory) {
  const MachineBuffer buffer =
      MachineBuffer::CopyOf(device_.get(), std::vector<std::byte>(400), "rows").value();
  while (device_->Allocate(1 << 10) != 0) {
  }
  EXPECT_TRUE(finder_.Find({.rows = buffer.place(), .n_rows = 1, .n_dims = 100}).empty());
}

}  // namespace
}  // namespace kvlathe
