// Mistakes that a GPU would show seldom, planted one by one, and how its emulation shows each of
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "../sequence_cases.h"
#include "cuda/cuda_machine.h"
#include "cuda/emulated/emulated_runtime.h"
#include "cuda/mirror/list_bytes.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "machine/machine_buffer.h"

namespace kvlathe {
namespace {

constexpr int kDims = 16;
constexpr int64_t kEmulatedBytes = int64_t{128} << 20;

std::span<const std::byte> BytesOf(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

std::shared_ptr<CudaMachine> EmulatedMachine(ThreadPool* threads, bool uses_kernels) {
  return *CudaMachine::Create(
      {.memory_bytes = kEmulatedBytes, .uses_kernels = uses_kernels, .looks_for_mistakes = true},
      threads, Isa::kScalar);
}

// A product y = 2 x on the machine.
class MistakesOnAGpu : public ::testing::Test {
 protected:
  MistakesOnAGpu() {
    w_ = *Weight::Create(&machine_->residents(), kDims, kDims, WeightType::kF32);
    std::vector<float> rows(kDims * kDims);
    for (int i = 0; i < kDims; ++i) rows[i * kDims + i] = 2;
    w_->WriteRows(0, kDims, DType::kF32, rows.data(), kDims);
    x_ = *MachineBuffer::CopyOf(&memory(), BytesOf(std::vector<float>(kDims, 3.0f)), "x");
    y_ = *MachineBuffer::CopyOf(&memory(), BytesOf(std::vector<float>(kDims)), "y");
  }
  CudaDevice& memory() { return machine_->cuda_memory(); }
  CudaStream& stream() { return memory().stream(); }
  Backend& backend() { return machine_->backend(); }
  ProductPlan Product() {
    return {.w = w_->id(),
            .n_rows = 1,
            .x = x_.place(),
            .x_stride = kDims,
            .y = y_.place(),
            .y_stride = kDims};
  }
  volatile float* AddressOf(const ObjectPlace& place) { return memory().As<volatile float>(place); }
  std::vector<float> Downloaded(const MachineBuffer& buffer) {
    std::vector<float> numbers(buffer.n_bytes() / sizeof(float));
    memory().Download(buffer.place(), std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  ThreadPool threads_{1};
  std::shared_ptr<CudaMachine> machine_ = EmulatedMachine(&threads_, true);
  std::optional<Weight> w_;
  MachineBuffer x_, y_;
};
using MistakesOnAGpuDeathTest = MistakesOnAGpu;

TEST_F(MistakesOnAGpu, ItComputesWhereNothingIsWrong) {
  backend().Project(Product());
  EXPECT_TRUE(backend().Finish().ok());
  EXPECT_EQ(Downloaded(y_), std::vector<float>(kDims, 6.0f));
}

TEST_F(MistakesOnAGpuDeathTest, TheHostReadsAnActivation) {
  backend().Project(Product());
  ASSERT_TRUE(backend().Finish().ok());
  EXPECT_EQ(memory().HostView(y_.place()), nullptr);
  EXPECT_DEATH(static_cast<void>(float{*AddressOf(y_.place())}), "");
}

TEST_F(MistakesOnAGpuDeathTest, TheHostWritesAnActivation) {
  EXPECT_DEATH(*AddressOf(x_.place()) = 1, "");
}

TEST_F(MistakesOnAGpuDeathTest, TheHostReadsWeights) {
  const auto* const numbers =
      reinterpret_cast<const volatile float*>(machine_->cuda_residents().At(w_->id())->data);
  EXPECT_DEATH(static_cast<void>(float{*numbers}), "");
}

// Work runs where the host waits, so that it finds what has become of a plan by then.
TEST_F(MistakesOnAGpu, APlanDiesBeforeItRuns) {
  const std::vector<float> rows = {1, 2, 3, 4};
  const MachineBuffer buffer = *MachineBuffer::CopyOf(&memory(), BytesOf(rows), "rows");
  std::vector<int64_t> wanted = {2, 3};
  backend().TakeRows({.rows = buffer.place(), .row_bytes = sizeof(float), .from = wanted});
  wanted = {1, 1};  // the next plan lies in the same memory
  EXPECT_TRUE(backend().Finish().ok());
  EXPECT_EQ(Downloaded(buffer), (std::vector<float>{3, 4, 3, 4}));
  // The same by a kernel that was given the pointer of the plan.
  memory().Upload(buffer.place(), BytesOf(rows));
  wanted = {2, 3};
  auto* const numbers = memory().As<float>(buffer.place());
  emulated::AddWork(stream().get(), [numbers, from = std::span<const int64_t>(wanted)] {
    for (size_t i = 0; i < from.size(); ++i) numbers[i] = numbers[from[i]];
  });
  wanted[0] = wanted[1] = 1;
  EXPECT_TRUE(backend().Finish().ok());
  EXPECT_NE(Downloaded(buffer), (std::vector<float>{3, 4, 3, 4}));
}

TEST_F(MistakesOnAGpu, APinnedBufferIsOverwrittenBeforeItIsCopied) {
  const std::vector<float> sent(kDims, 7.0f);
  const float* const kept = stream().Send(std::span<const float>(sent));
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, kDims * sizeof(float)), cudaSuccess);
  std::memcpy(pinned, sent.data(), kDims * sizeof(float));
  EXPECT_EQ(cudaMemcpyAsync(memory().At(x_.place()), pinned, kDims * sizeof(float),
                            cudaMemcpyHostToDevice, stream().get()),
            cudaSuccess);
  std::memset(pinned, 0, kDims * sizeof(float));
  backend().Project(Product());
  EXPECT_EQ(cudaMemcpyAsync(memory().At(x_.place()), kept, kDims * sizeof(float),
                            cudaMemcpyDeviceToDevice, stream().get()),
            cudaSuccess);
  ASSERT_TRUE(backend().Finish().ok());
  EXPECT_EQ(Downloaded(y_), std::vector<float>(kDims, 0.0f));  // and not 14
  EXPECT_EQ(Downloaded(x_), sent);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(MistakesOnAGpu, ABlockIsGivenBackBeforeItIsRead) {
  for (const bool uses_kernels : {false, true}) {
    const auto model =
        testing::MakeCaseModel({"None", "none"}, EmulatedMachine(&threads_, uses_kernels));
    Device& memory = model->machine().memory();
    BlockPool pool(int64_t{16} << 20, &memory);
    SequenceCache cache(&model->layout(), &pool);
    testing::Feed(model.get(), &cache, testing::RandomTokens(100, 1), 100);
    const ObjectId block = cache.head(0, 0).blocks()[0];
    testing::Feed(model.get(), &cache, testing::RandomTokens(1, 2), 1);
    EXPECT_TRUE(std::isfinite(model->logits(0)[0]));
    memory.Forget({block}, 64);  // as the pool does with the last reference
    testing::Feed(model.get(), &cache, testing::RandomTokens(1, 3), 1);
    EXPECT_TRUE(std::isnan(model->logits(0)[0]));
  }
}

TEST_F(MistakesOnAGpu, WhatThePoolTakesBackHoldsNaN) {
  BlockPool pool(1 << 20, &memory());
  const ObjectId kept = pool.Allocate(ObjectKind::kBlock, 64);
  const ObjectId freed = pool.Allocate(ObjectKind::kBlock, 64);
  memory().Fill({freed}, std::byte{0}, 64);
  memory().Fill({kept}, std::byte{0}, 64);
  pool.Release(freed);
  float number = 0;
  memory().Download({freed}, std::as_writable_bytes(std::span(&number, 1)));
  EXPECT_TRUE(std::isnan(number));
  memory().Download({kept}, std::as_writable_bytes(std::span(&number, 1)));
  EXPECT_EQ(number, 0);
}

// What a verb reads on the host without having said so is NaN, and what it writes so does not come
// back.
TEST_F(MistakesOnAGpu, AVerbOfTheHostForgetsWhatItReadsOrWrites) {
  const auto shadow = *ShadowDevice::Create(&memory(), /*fills_with_nan=*/true);
  CpuDevice host_memory;
  CpuResidents none(&host_memory);
  CpuBackend verbs(&threads_, Isa::kScalar, shadow.get(), &none);
  const std::vector<float> ones(kDims, 1.0f);
  const MachineBuffer weight = *MachineBuffer::CopyOf(&memory(), BytesOf(ones), "weight");
  const MachineBuffer out = *MachineBuffer::CopyOf(&memory(), BytesOf(ones), "out");
  memory().Upload(out.place(), BytesOf(std::vector<float>(kDims, 5.0f)));
  const NormPlan plan = {.x = x_.place(),
                         .n_rows = 1,
                         .n_dims = kDims,
                         .stride = kDims,
                         .weight = weight.place(),
                         .out = out.place()};
  constexpr int64_t kBytes = kDims * int64_t{sizeof(float)};
  const auto run = [&](const VerbBytes& bytes) {
    EXPECT_TRUE(shadow->Bring(bytes).ok());
    verbs.Normalise({&plan, 1});
    shadow->TakeBack(bytes);
    return Downloaded(out);
  };
  const auto new_list = [&] { return VerbBytes(memory(), machine_->cuda_residents()); };
  VerbBytes without_write = new_list();
  without_write.Reads(plan.x, kBytes);
  without_write.Reads(plan.weight, kBytes);
  without_write.Reads(plan.out, 4);
  EXPECT_EQ(run(without_write), std::vector<float>(kDims, 5.0f));
  VerbBytes without_weight = new_list();
  without_weight.Reads(plan.x, kBytes);
  without_weight.Reads(plan.weight, kBytes - 4);
  without_weight.Writes(plan.out, kBytes);
  const std::vector<float> unknown = run(without_weight);
  EXPECT_EQ(unknown[0], 1);
  EXPECT_TRUE(std::isnan(unknown[kDims - 1]));
  VerbBytes whole = new_list();
  ListBytes(std::span(&plan, 1), &whole);
  EXPECT_EQ(run(whole), ones);
}

TEST_F(MistakesOnAGpuDeathTest, AVerbOfTheHostReadsABufferThatIsFreed) {
  EXPECT_DEATH(
      {
        const auto machine = EmulatedMachine(&threads_, false);
        MachineBuffer rows = *MachineBuffer::Allocate(&machine->memory(), 64, "rows");
        const ObjectPlace place = rows.place();
        rows = {};
        machine->backend().TakeChannel({.rows = place, .n_rows = 2, .n_dims = 8});
      },
      "");
}

}  // namespace
}  // namespace kvlathe
