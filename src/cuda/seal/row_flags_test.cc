// Flags of rows: how many there may be, and in which order they are read.
#include "cuda/seal/row_flags.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvlathe {
namespace {

// Sets the last of n flags, as a kernel would.
void SetLast(CudaStream* stream, int32_t* flags, int64_t n) {
  ASSERT_NE(flags, nullptr);
  EXPECT_EQ(cudaMemsetAsync(flags + n - 1, 1, sizeof(int32_t), stream->get()), cudaSuccess);
}

TEST(RowFlagsTest, MoreThanThereIsRoomForAreReadInOrder) {
  auto made = CudaStream::Create();
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<CudaStream> stream = std::move(made).value();
  RowFlags flags(stream.get());
  const std::vector<int64_t> sizes = {3, 40000, 40000, 200000, 1, 65536};
  for (int again = 0; again < 2; ++again) {
    for (int i = 0; i < std::ssize(sizes); ++i) {
      const int64_t n = sizes[i];
      int32_t* const taken = flags.Take(n, [i, n](auto read, StepReport* report) {
        EXPECT_EQ(std::ssize(read), n);
        EXPECT_NE(read.back(), 0);
        for (int64_t at = 0; at + 1 < n; ++at) ASSERT_EQ(read[at], 0) << at;
        report->failures.push_back({i, 7, Error(StatusCode::kDataLoss, "of {}", i)});
      });
      SetLast(stream.get(), taken, n);
    }
    StepReport report;
    flags.Report(&report);
    ASSERT_EQ(report.failures.size(), sizes.size());
    for (int i = 0; i < std::ssize(sizes); ++i) EXPECT_EQ(report.failures[i].sequence, i);
  }
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace kvlathe
