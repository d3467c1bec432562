// Mistakes that would go unseen on a CPU, planted one by one, and how the machine that bites
// (cpu/biting/biting_machine.h) shows each of them.
#include "cpu/biting/biting_machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "../sequence_cases.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "machine/machine_buffer.h"

namespace kvlathe {
namespace {

constexpr int kDims = 16;

std::span<const std::byte> BytesOf(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

// A product y = 2 x on the machine.
class BitingMachineTest : public ::testing::Test {
 protected:
  BitingMachineTest() {
    w_ = *Weight::Create(&machine_->residents(), kDims, kDims, WeightType::kF32);
    std::vector<float> rows(kDims * kDims);
    for (int i = 0; i < kDims; ++i) rows[i * kDims + i] = 2;
    w_->WriteRows(0, kDims, DType::kF32, rows.data(), kDims);
    x_ = *MachineBuffer::CopyOf(&memory(), BytesOf(std::vector<float>(kDims, 3.0f)), "x");
    y_ = *MachineBuffer::CopyOf(&memory(), BytesOf(std::vector<float>(kDims)), "y");
  }
  Device& memory() { return machine_->memory(); }
  Backend& backend() { return machine_->backend(); }
  ProductPlan Product() {
    return {.w = w_->id(),
            .n_rows = 1,
            .x = x_.place(),
            .x_stride = kDims,
            .y = y_.place(),
            .y_stride = kDims};
  }
  // The address that a pointer in a plan would have had.
  volatile float* AddressOf(const ObjectPlace& place) {
    return CpuAccess(memory()).As<volatile float>(place);
  }
  std::vector<float> Downloaded(const MachineBuffer& buffer) {
    std::vector<float> numbers(buffer.n_bytes() / sizeof(float));
    memory().Download(buffer.place(), std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  ThreadPool threads_{2};
  std::shared_ptr<BitingMachine> machine_ = std::make_shared<BitingMachine>(&threads_);
  std::optional<Weight> w_;
  MachineBuffer x_, y_;
};
using BitingMachineDeathTest = BitingMachineTest;

TEST_F(BitingMachineTest, ComputesWhereNothingIsWrong) {
  backend().Project(Product());
  EXPECT_TRUE(backend().Finish().ok());
  EXPECT_EQ(Downloaded(y_), std::vector<float>(kDims, 6.0f));
}

TEST_F(BitingMachineDeathTest, TheHostReadsAnActivation) {
  backend().Project(Product());
  ASSERT_TRUE(backend().Finish().ok());
  EXPECT_DEATH(static_cast<void>(float{*AddressOf(y_.place())}), "");
}

TEST_F(BitingMachineDeathTest, TheHostWritesAnActivation) {
  EXPECT_DEATH(*AddressOf(x_.place()) = 1, "");
}

TEST_F(BitingMachineDeathTest, TheHostReadsWeights) {
  const auto& residents = dynamic_cast<const CpuResidents&>(machine_->residents());
  const auto* const numbers =
      reinterpret_cast<const volatile float*>(residents.At(w_->id())->data());
  EXPECT_DEATH(static_cast<void>(float{*numbers}), "");
}

TEST_F(BitingMachineDeathTest, TheHostWritesATableWhileWorkWaits) {
  const FloatTable bias = *FloatTable::Make(&memory(), std::vector<float>(kDims, 1.0f), "bias");
  ProductPlan plan = Product();
  plan.bias = bias.place();
  backend().Project(plan);
  EXPECT_DEATH(*AddressOf(bias.place()) = 5, "");
}

TEST_F(BitingMachineDeathTest, TheHostReadsACacheBlock) {
  const auto model = testing::MakeCaseModel({"None", "none"}, machine_);
  BlockPool pool(int64_t{64} << 20, &memory());
  SequenceCache cache(&model->layout(), &pool);
  testing::Feed(model.get(), &cache, testing::RandomTokens(100, 1), 100);
  const ObjectPlace block = {cache.head(1, 1).blocks()[0]};
  EXPECT_DEATH(static_cast<void>(float{*AddressOf(block)}), "");
}

// A machine may copy a plan or not; what is asked of it is that the host may take the plan back.
TEST_F(BitingMachineTest, APlanDiesBeforeItRuns) {
  const std::vector<float> rows = {1, 2, 3, 4};
  const auto after = [&](const auto& take) {
    const MachineBuffer buffer = *MachineBuffer::CopyOf(&memory(), BytesOf(rows), "rows");
    std::vector<int64_t> wanted = {2, 3};
    take(TakeRowsPlan{.rows = buffer.place(), .row_bytes = sizeof(float), .from = wanted});
    wanted = {1, 1};  // the next plan lies in the same memory
    EXPECT_TRUE(backend().Finish().ok());
    return Downloaded(buffer);
  };
  EXPECT_EQ(after([&](const TakeRowsPlan& plan) { backend().TakeRows(plan); }),
            (std::vector<float>{3, 4, 3, 4}));
  // The same by a backend that keeps the pointers of the plan.
  WorkQueue queue;
  CpuBackend verbs(&threads_, Isa::kScalar, &dynamic_cast<CpuDevice&>(memory()),
                   &dynamic_cast<const CpuResidents&>(machine_->residents()));
  const MachineBuffer buffer = *MachineBuffer::CopyOf(&memory(), BytesOf(rows), "rows");
  EXPECT_EQ(Downloaded(buffer), rows);
  std::vector<int64_t> wanted = {2, 3};
  const TakeRowsPlan plan = {.rows = buffer.place(), .row_bytes = sizeof(float), .from = wanted};
  queue.Add([&verbs, plan] { verbs.TakeRows(plan); });
  wanted[0] = wanted[1] = 1;
  queue.Run();
  EXPECT_NE(Downloaded(buffer), (std::vector<float>{3, 4, 3, 4}));
}

TEST_F(BitingMachineTest, WhatIsUploadedMayChangeBehindTheCall) {
  std::vector<float> from(kDims, 7.0f);
  memory().Upload(x_.place(), BytesOf(from));
  from.assign(kDims, 0.0f);
  backend().Project(Product());
  ASSERT_TRUE(backend().Finish().ok());
  EXPECT_EQ(Downloaded(y_), std::vector<float>(kDims, 14.0f));
}

TEST_F(BitingMachineDeathTest, AStepBeginsWithoutTheFinishOfTheLast) {
  backend().set_deterministic(true);
  backend().Project(Product());
  EXPECT_DEATH(backend().set_deterministic(true), "");
}

// Whoever reads results in place, as a CPU allows, finds none here.
TEST_F(BitingMachineTest, ResultsAreNotThereBeforeTheyAreFetched) {
  backend().Project(Product());
  EXPECT_EQ(memory().HostView(y_.place()), nullptr);
}

TEST_F(BitingMachineTest, ABlockIsGivenBackBeforeItIsRead) {
  const auto model = testing::MakeCaseModel({"None", "none"}, machine_);
  BlockPool pool(int64_t{64} << 20, &memory());
  SequenceCache cache(&model->layout(), &pool);
  testing::Feed(model.get(), &cache, testing::RandomTokens(100, 1), 100);
  const ObjectId block = cache.head(0, 0).blocks()[0];
  testing::Feed(model.get(), &cache, testing::RandomTokens(1, 2), 1);
  EXPECT_TRUE(std::isfinite(model->logits(0)[0]));
  memory().Forget({block}, 64);  // as the pool does with the last reference
  testing::Feed(model.get(), &cache, testing::RandomTokens(1, 3), 1);
  EXPECT_TRUE(std::isnan(model->logits(0)[0]));
}

TEST_F(BitingMachineTest, WhatThePoolTakesBackHoldsNaN) {
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

TEST_F(BitingMachineDeathTest, AVerbReadsABufferThatIsFreed) {
  const ProductPlan plan = Product();
  x_ = {};
  EXPECT_DEATH(
      {
        backend().Project(plan);
        static_cast<void>(backend().Finish());
      },
      "");
}

TEST_F(BitingMachineDeathTest, WeightsAreRemovedWhileWorkWaits) {
  EXPECT_DEATH(
      {
        backend().Project(Product());
        w_.reset();
        static_cast<void>(backend().Finish());
      },
      "");
}

}  // namespace
}  // namespace kvlathe
