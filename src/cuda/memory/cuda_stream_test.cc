// How plans reach the device, and what becomes of work that is collected.
#include "cuda/memory/cuda_stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cuda/kernels/rows/norm.h"
#include "cuda/testing/device_array.h"

namespace kvlathe {
namespace {

class CudaStreamTest : public ::testing::Test {
 protected:
  // The norm of one row of weights 1 that is sent: each of its numbers is +1 or -1 then.
  void NormaliseSent(const std::vector<float>& row) {
    Normalise(stream_->Send(std::span<const float>(row)));
  }
  void Normalise(const float* row) {
    const cuda::NormParams params = {.x = row,
                                     .n_rows = 1,
                                     .n_dims = 2,
                                     .stride = 2,
                                     .weight = ones_.data(),
                                     .out = out_.data()};
    cuda::Normalise(stream_->get(), {&params, 1});
  }
  std::vector<float> Out() {
    stream_->Wait("a test");
    return out_.Download(stream_->get());
  }

  std::unique_ptr<CudaStream> stream_ = CudaStream::Create().value();
  DeviceArray<float> ones_{std::vector<float>{1, 1}};
  DeviceArray<float> out_{std::vector<float>{9, 9}};
};

TEST_F(CudaStreamTest, WhatIsSentMayGo) {
  {
    std::vector<float> row = {2, -2};
    NormaliseSent(row);
    row = {5, 5};
  }
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(Out(), (std::vector<float>{1, -1}));
}

TEST_F(CudaStreamTest, TheRingGoesRound) {
  const std::vector<float> much(CudaStream::kSentBytes / 4 / 5);
  for (int i = 0; i < 12; ++i) {
    EXPECT_NE(stream_->Send(std::span<const float>(much)), nullptr);
    NormaliseSent({i % 2 == 0 ? 3.0f : -3.0f, 3});
  }
  EXPECT_EQ(Out(), (std::vector<float>{-1, 1}));
}

TEST_F(CudaStreamTest, WhatIsLargerThanTheRingTravelsApart) {
  const std::vector<float> large(CudaStream::kSentBytes / 4, 1.0f);
  const float* const sent = stream_->Send(std::span<const float>(large));
  ASSERT_NE(sent, nullptr);
  Normalise(sent + large.size() - 2);
  EXPECT_EQ(Out(), (std::vector<float>{1, 1}));
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(CudaStreamTest, CollectedWorkRunsWithTheNumbersOfItsOwnStep) {
  for (int step = 0; step < 4; ++step) {
    stream_->Collect(1);
    NormaliseSent({step % 2 == 0 ? 4.0f : -4.0f, 4});
    EXPECT_TRUE(stream_->Finish().ok());
    EXPECT_EQ(Out(), (std::vector<float>{step % 2 == 0 ? 1.0f : -1.0f, 1}));
  }
  EXPECT_EQ(stream_->n_graphs_made(), 1);
}

TEST_F(CudaStreamTest, MoreLaunchesMakeAnotherGraph) {
  for (const int n_launches : {1, 2, 2, 1}) {
    stream_->Collect(7);
    for (int i = 0; i < n_launches; ++i) NormaliseSent({2, i % 2 == 0 ? 2.0f : -2.0f});
    EXPECT_TRUE(stream_->Finish().ok());
    EXPECT_EQ(Out(), (std::vector<float>{1, n_launches == 1 ? 1.0f : -1.0f}));
  }
  EXPECT_EQ(stream_->n_graphs_made(), 2);
}

TEST_F(CudaStreamTest, KeepsNoMoreGraphsThanItMay) {
  for (int round = 0; round < 2; ++round) {
    for (int shape = 0; shape < CudaStream::kMostGraphs + 1; ++shape) {
      stream_->Collect(shape);
      NormaliseSent({2, 2});
      EXPECT_TRUE(stream_->Finish().ok());
    }
  }
  EXPECT_GT(stream_->n_graphs_made(), CudaStream::kMostGraphs + 1);
  // The newest is there.
  const int64_t n_made = stream_->n_graphs_made();
  stream_->Collect(CudaStream::kMostGraphs);
  NormaliseSent({2, 2});
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(stream_->n_graphs_made(), n_made);
}

TEST_F(CudaStreamTest, WhatIsSentWhileWorkIsCollectedIsThereForLaterWorkToo) {
  stream_->Collect(1);
  const std::vector<float> row = {-3, 3};
  const float* const sent = stream_->Send(std::span<const float>(row));
  stream_->HandOver();  // of nothing
  Normalise(sent);
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(Out(), (std::vector<float>{-1, 1}));
}

TEST_F(CudaStreamTest, RefusedLaunchesAreTold) {
  for (const bool collects : {false, true, true}) {
    if (collects) stream_->Collect(1);
    NormaliseSent({2, 2});
    const cuda::NormParams beyond = {.n_rows = int64_t{1} << 34, .n_dims = 2};
    cuda::Normalise(stream_->get(), {&beyond, 1});
    NormaliseSent({2, 2});
    EXPECT_EQ(stream_->Finish().message(), "CUDA: a kernel: invalid configuration argument");
    EXPECT_TRUE(stream_->Finish().ok());
  }
}

TEST_F(CudaStreamTest, MemoryThatIsNotThereIsNoFailure) {
  EXPECT_EQ(stream_->TryAllocate(int64_t{1} << 50), nullptr);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(CudaStreamTest, FailuresAreToldOnce) {
  stream_->Note(cudaErrorMemoryAllocation, "rows");
  stream_->Note(cudaErrorInvalidValue, "a later one");
  const Status status = stream_->Finish();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "CUDA: rows: out of memory");
  EXPECT_TRUE(stream_->Finish().ok());
}

}  // namespace
}  // namespace kvlathe
