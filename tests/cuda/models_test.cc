// Whole models on a GPU against the CPU: every family, and weights in every kind of numbers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_machine.h"
#include "loaded_model.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using testing::LoadedModel;
using testing::LoadModel;
using testing::Matrix;
using testing::MaxDifference;

std::shared_ptr<Machine> EmulatedMachine(ThreadPool* threads) {
  auto machine = CudaMachine::Create({.memory_bytes = int64_t{256} << 20}, threads, Isa::kScalar);
  EXPECT_TRUE(machine.ok()) << machine.status();
  return *std::move(machine);
}

// A prompt, some of whose chunks are short, and tokens behind it.
Matrix LogitsOf(const std::string& model, const NumberTypes& types, bool on_gpu) {
  LoadedModel loaded = on_gpu ? LoadModel(KVLATHE_SOURCE_DIR + model, types, Isa::kScalar, nullptr,
                                          0, 0, EmulatedMachine)
                              : LoadModel(KVLATHE_SOURCE_DIR + model, types, Isa::kScalar);
  std::vector<int> ids;
  for (int t = 0; t < 26; ++t) ids.push_back(3 + t * 7 % 60);
  return EngineLogits(&loaded, ids, {17, 5, 1});
}

class FamiliesOnAGpu : public ::testing::TestWithParam<std::string> {};

// Sums in another order. Logits reach 8.
TEST_P(FamiliesOnAGpu, HaveTheLogitsOfTheCpu) {
  const NumberTypes types = DType::kF32;
  const std::string model = "/tests/golden/" + GetParam();
  EXPECT_LT(MaxDifference(LogitsOf(model, types, true), LogitsOf(model, types, false)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, FamiliesOnAGpu,
                         ::testing::Values("falcon_11b", "falcon_40b", "falcon_7b",
                                           "falcon_sequential", "gemma3", "gpt2", "llama",
                                           "mistral", "phi3", "phi3_longrope", "qwen2", "qwen3"));

// As far from the CPU as two of its instruction sets may be from each other: rows are rounded to 8
// bits of mantissa, and the CPU rounds those that meet blocks to integers of 8 bits.
TEST(NumbersOnAGpu, WeightsOfAnyKindGiveTheLogitsOfTheCpu) {
  constexpr double kBf16Bound = 0.35;
  const std::string nano = "/models/lathe-nano";
  const auto difference = [&](WeightType weights, DType rows) {
    const NumberTypes types(weights, rows, rows);
    return MaxDifference(LogitsOf(nano, types, true), LogitsOf(nano, types, false));
  };
  EXPECT_LT(difference(WeightType::kBf16, DType::kBf16), kBf16Bound);
  EXPECT_LT(difference(WeightType::kQ4_K, DType::kBf16), kBf16Bound);
  EXPECT_LT(difference(WeightType::kQ4_K, DType::kF32), 1e-3);
}

}  // namespace
}  // namespace kvlathe
