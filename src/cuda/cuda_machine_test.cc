// What is told where a GPU cannot be had, and of verbs that run on the host.
#include "cuda/cuda_machine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cpu/memory/cpu_device.h"
#include "cuda/emulated/emulated_runtime.h"
#include "format/split_bits/coded_rows.h"
#include "machine/machine_buffer.h"

namespace kvlathe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaMachineTest : public ::testing::Test {
 protected:
  ~CudaMachineTest() override {
    emulated::SetDeviceCount(1);
    emulated::SetDeviceBytes(1024 * kMiB);
    emulated::SetHasKernels(true);
    cudaSetDevice(0);
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
  emulated::SetHasKernels(false);
  ExpectRefused({}, StatusCode::kUnavailable, "KVLATHE_CUDA_ARCHITECTURES=90");
  emulated::SetHasKernels(true);
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

// Threads begin with GPU 0, and whoever calls may choose another one between verbs.
TEST_F(CudaMachineTest, WorksOnItsGpuWhateverThreadsHaveChosen) {
  emulated::SetDeviceCount(2);
  const auto machine =
      CudaMachine::Create({.device = 1, .memory_bytes = 16 * kMiB}, &threads_, Isa::kScalar);
  ASSERT_TRUE(machine.ok()) << machine.status();
  Device& memory = (*machine)->memory();
  Backend& backend = (*machine)->backend();
  const MachineBuffer rows = *MachineBuffer::Allocate(&memory, 64, "rows");
  const int64_t from[] = {0};
  std::thread([&] {
    memory.Fill(rows.place(), std::byte{1}, 64);
    backend.TakeRows({.rows = rows.place(), .row_bytes = 16, .from = from});
    EXPECT_TRUE(backend.Finish().ok());
    cudaSetDevice(0);
    backend.TakeRows({.rows = rows.place(), .row_bytes = 16, .from = from});
    EXPECT_TRUE(backend.Finish().ok());
  }).join();
  std::byte first{};
  memory.Download(rows.place(), {&first, 1});
  EXPECT_EQ(first, std::byte{1});
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

// Rows that cannot be coded, by a kernel or on the host.
TEST_F(CudaMachineTest, TellsOnceWhoseRowsAreNotFinite) {
  for (const bool uses_kernels : {false, true}) {
    const auto machine = CudaMachine::Create(
        {.memory_bytes = 16 * kMiB, .uses_kernels = uses_kernels}, &threads_, Isa::kScalar);
    ASSERT_TRUE(machine.ok()) << machine.status();
    Device& memory = (*machine)->memory();
    Backend& backend = (*machine)->backend();
    const BlockShape shape = {.rank_k = 16, .rank_v = 16};
    const MachineBuffer block =
        *MachineBuffer::Allocate(&memory, kBlockSize * CodedTokenBytes(shape), "a block");
    const MachineBuffer rows = *MachineBuffer::Allocate(&memory, 64, "rows");
    const auto append = [&](std::byte of_key) {
      memory.Fill(rows.place(), of_key, 32);
      memory.Fill(rows.place() + 32, std::byte{0}, 32);
      AppendPlan plan = {.layer_idx = 5};
      plan.items.push_back({.device = &memory, .sequence = 3, .n_rows = 1});
      plan.rows.push_back({.shape = shape,
                           .block = block.place().object,
                           .is_coded = true,
                           .n_rows = 1,
                           .k = rows.place(),
                           .k_stride = 16,
                           .v = rows.place() + 32,
                           .v_stride = 16});
      backend.Append(plan);
      return backend.Finish();
    };
    const auto report = append(std::byte{0xff});  // NaN
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->failures.size(), 1u);
    EXPECT_EQ(report->failures[0].sequence, 3);
    EXPECT_EQ(report->failures[0].layer_idx, 5);
    EXPECT_EQ(report->failures[0].status.code(), StatusCode::kDataLoss);
    const auto next = append(std::byte{0x3f});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE(next->failures.empty());
  }
}

// Bytes of this process that lie in memory.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * CpuDevice().page_bytes();
}

TEST_F(CudaMachineTest, NothingOfTheGpuStaysOnTheHostBehindAVerb) {
  constexpr int64_t kDims = 1024, kRows = 16 * 1024;
  const auto machine = CudaMachine::Create({.memory_bytes = 80 * kMiB, .uses_kernels = false},
                                           &threads_, Isa::kScalar);
  ASSERT_TRUE(machine.ok()) << machine.status();
  Device& memory = (*machine)->memory();
  const MachineBuffer rows = *MachineBuffer::Allocate(&memory, kRows * kDims * 4, "rows");
  memory.Fill(rows.place(), std::byte{0x3f}, rows.n_bytes());
  ASSERT_TRUE((*machine)->backend().Finish().ok());
  const int64_t before = ResidentBytes();
  const std::vector<float> channel = (*machine)->backend().TakeChannel(
      {.rows = rows.place(), .n_rows = kRows, .n_dims = kDims, .channel = 7});
  ASSERT_TRUE((*machine)->backend().Finish().ok());
  EXPECT_GT(channel.back(), 0);
  float taken = 1;
  memory.Download(rows.place() + 7 * 4, std::as_writable_bytes(std::span(&taken, 1)));
  EXPECT_EQ(taken, 0);
  // It brought 64 MiB, through 8 of pinned memory.
  EXPECT_LT(ResidentBytes() - before, 24 * kMiB);
}

}  // namespace
}  // namespace kvlathe
