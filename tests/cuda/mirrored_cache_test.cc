// Everything that a cache can be and do, on a GPU none of whose kernels is used: each verb brings
// what its plan names to the host and takes what it wrote back (cuda/mirror/mirror.h). What a list
// forgets is NaN there.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_machine.h"
#include "lived_sequence.h"
#include "runtime/machines/machine_choice.h"
#include "sequence_cases.h"

namespace kvlathe {
namespace {

using testing::LiveThrough;
using testing::SequenceCase;

constexpr int64_t kGpuBytes = int64_t{48} << 20;

std::shared_ptr<Machine> MirroredMachine(ThreadPool* threads) {
  auto machine = CudaMachine::Create(
      {.memory_bytes = kGpuBytes, .uses_kernels = false, .looks_for_mistakes = true}, threads,
      Isa::kScalar);
  EXPECT_TRUE(machine.ok()) << machine.status();
  return *std::move(machine);
}

class MirroredCache : public ::testing::TestWithParam<SequenceCase> {};

TEST_P(MirroredCache, HasTheBitsOfTheCpu) {
  ThreadPool threads(1);
  const std::vector<std::string> logits = LiveThrough(GetParam(), MirroredMachine(&threads), 210);
  ASSERT_EQ(logits.size(), 5u);
  EXPECT_TRUE(logits == LiveThrough(GetParam(), MakeMachine(&threads, Isa::kScalar), 210));
}

INSTANTIATE_TEST_SUITE_P(Specs, MirroredCache, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvlathe
