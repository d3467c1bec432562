// What is told where a GPU cannot be had, and of verbs that run on the host.
#include "cuda/cuda_machine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/emulated/emulated_runtime.h"
#include "machine/machine_buffer.h"

namespace kvlathe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaMachineTest : public ::testing::Test {
 protected:
  ~CudaMachineTest() override {
    emulated::SetDeviceCount(1);
    emulated::SetDeviceBytes(1024 * kMiB);
  }
  void ExpectRefused(const CudaOptions& options, StatusCode code, const std::string& says) {
    const auto machine = CudaMachine::Create(options, &threads_, Isa::kScalar);
    ASSERT_FALSE(machine.ok());
    EXPECT_EQ(machine.status().code(), code) << machine.status();
    EXPECT_NE(machine.status().ToString().find(says), std::string::npos) << machine.status();
  }

  ThreadPool threads_{1};
};

TEST_F(CudaMachineTest, SaysWhatIsMissingAndWhatToDo) {
  ExpectRefused({.device = 1}, StatusCode::kInvalidArgument,
                "there is no GPU 1: CUDA finds 1, numbered from 0");
  ExpectRefused({.device = -1}, StatusCode::kInvalidArgument, "there is no GPU -1");
  ExpectRefused({.memory_bytes = -1}, StatusCode::kInvalidArgument, "-1 bytes");
  ExpectRefused({.memory_bytes = 2048 * kMiB}, StatusCode::kResourceExhausted, "ask for less");
  emulated::SetDeviceBytes(16 * kMiB);  // less than plans take
  ExpectRefused({}, StatusCode::kResourceExhausted, "for plans: out of memory");
  emulated::SetDeviceCount(0);
  ExpectRefused({}, StatusCode::kUnavailable, "no GPU that CUDA finds");
}

TEST_F(CudaMachineTest, TakesWhatIsFreeButForSomeSlack) {
  emulated::SetDeviceBytes(256 * kMiB);
  const auto machine = CudaMachine::Create({}, &threads_, Isa::kScalar);
  ASSERT_TRUE(machine.ok()) << machine.status();
  const int64_t n_free = 256 * kMiB - CudaStream::kSentBytes;
  EXPECT_EQ((*machine)->cuda_memory().n_bytes(), n_free - n_free / 32);
}

TEST_F(CudaMachineTest, TellsOnceOfEachVerbThatRunsOnTheHost) {
  std::vector<std::string> told;
  const auto machine =
      CudaMachine::Create({.memory_bytes = 16 * kMiB,
                           .uses_kernels = false,
                           .on_host_verb = [&](std::string_view verb) { told.emplace_back(verb); }},
                          &threads_, Isa::kScalar);
  ASSERT_TRUE(machine.ok()) << machine.status();
  const MachineBuffer rows = *MachineBuffer::Allocate(&(*machine)->memory(), 64, "rows");
  Backend& backend = (*machine)->backend();
  for (int i = 0; i < 2; ++i) {
    const int64_t from[] = {1};
    backend.TakeRows({.rows = rows.place(), .row_bytes = 16, .from = from});
    backend.TakeChannel({.rows = rows.place(), .n_rows = 2, .n_dims = 4, .channel = 1});
    EXPECT_TRUE(backend.Finish().ok());
  }
  EXPECT_EQ(told, (std::vector<std::string>{"TakeRows", "TakeChannel"}));
}

}  // namespace
}  // namespace kvlathe
