// Whole models on a GPU against the CPU: every family, and weights in every kind of numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
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

LoadedModel Load(const std::string& model, const NumberTypes& types, bool on_gpu) {
  const std::string path = KVLATHE_SOURCE_DIR + model;
  return on_gpu ? LoadModel(path, types, Isa::kScalar, nullptr, 0, 0, EmulatedMachine)
                : LoadModel(path, types, Isa::kScalar);
}

// A prompt, some of whose chunks are short, and tokens behind it.
Matrix LogitsOf(const std::string& model, const NumberTypes& types, bool on_gpu) {
  LoadedModel loaded = Load(model, types, on_gpu);
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

INSTANTIATE_TEST_SUITE_P(
    Families, FamiliesOnAGpu,
    ::testing::Values("apertus", "arcee", "bailing_moe_v2", "cohere", "cohere2", "cohere_qk_norm",
                      "ernie4_5", "ernie4_5_moe", "exaone4", "falcon_11b", "falcon_40b",
                      "falcon_7b", "falcon_sequential", "gemma", "gemma2", "gemma3", "glm4",
                      "glm4_moe", "glm4_moe_groups", "gpt2", "gpt_neox", "gpt_neox_sequential",
                      "gpt_oss", "granite", "hunyuan_v1_dense", "internlm2", "llama",
                      "llama_dynamic", "llama_yarn", "ministral3", "mistral", "mixtral", "nemotron",
                      "olmo2", "olmo3", "olmoe", "phi", "phi3", "phi3_longrope", "phimoe", "qwen2",
                      "qwen2_moe", "qwen2_window", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
                      "stablelm", "stablelm_parallel", "starcoder2"));

// As far from the CPU as two of its instruction sets may be from each other: rows are rounded to 8
// bits of mantissa, and the CPU rounds those that meet blocks to integers of 8 bits.
constexpr double kBf16Bound = 0.35;

// Caps, sink logits, windows, norms of every form and experts, with rows of 16 bits, of which
// attention has kernels.
class VerbsOnAGpu : public ::testing::TestWithParam<std::string> {};

TEST_P(VerbsOnAGpu, HaveKernels) {
  std::vector<std::string> on_host;
  const auto make_machine = [&](ThreadPool* threads) -> std::shared_ptr<Machine> {
    auto machine = CudaMachine::Create(
        {.memory_bytes = int64_t{256} << 20,
         .on_host_verb = [&](std::string_view verb) { on_host.emplace_back(verb); }},
        threads, Isa::kScalar);
    EXPECT_TRUE(machine.ok()) << machine.status();
    return *std::move(machine);
  };
  LoadedModel loaded = LoadModel(std::string(KVLATHE_SOURCE_DIR) + "/tests/golden/" + GetParam(),
                                 DType::kBf16, Isa::kScalar, nullptr, 0, 0, make_machine);
  LoadedModel cpu = Load("/tests/golden/" + GetParam(), DType::kBf16, false);
  const std::vector<int> ids = {5, 9, 3, 60, 22, 7, 41, 18, 30}, chunks = {7, 1};
  const Matrix of_gpu = EngineLogits(&loaded, ids, chunks);
  EXPECT_LT(MaxDifference(of_gpu, EngineLogits(&cpu, ids, chunks)), kBf16Bound);
  EXPECT_EQ(on_host, std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Families, VerbsOnAGpu,
                         ::testing::Values("apertus", "cohere2", "gemma2", "glm4_moe_groups",
                                           "gpt_neox", "gpt_oss", "ministral3", "nemotron", "olmo2",
                                           "phimoe", "qwen2_moe", "stablelm"));

constexpr char kNano[] = "/models/lathe-nano";

TEST(NumbersOnAGpu, WeightsOfAnyKindGiveTheLogitsOfTheCpu) {
  const auto difference = [&](WeightType weights, DType rows) {
    const NumberTypes types(weights, rows, rows);
    return MaxDifference(LogitsOf(kNano, types, true), LogitsOf(kNano, types, false));
  };
  EXPECT_LT(difference(WeightType::kBf16, DType::kBf16), kBf16Bound);
  EXPECT_LT(difference(WeightType::kQ4_K, DType::kBf16), kBf16Bound);
  EXPECT_LT(difference(WeightType::kQ4_K, DType::kF32), 1e-3);
}

// The likeliest token of a row, and how far it is before the next.
struct Choice {
  int token = 0;
  double gap = 0;
};
Choice ChoiceOf(std::vector<double> row) {
  const auto first = std::ranges::max_element(row);
  const double largest = *first;
  *first = -INFINITY;
  return {static_cast<int>(first - row.begin()), largest - *std::ranges::max_element(row)};
}

// What the CPU chooses, token by token, the GPU chooses too, but where rounding may decide.
TEST(GreedyTextOnAGpu, IsThatOfTheCpuWhereTheChoiceIsClear) {
  constexpr int kGenerated = 48;
  std::vector<int> ids = {1, 40, 7, 310, 52};
  const size_t n_prompt = ids.size();
  LoadedModel cpu = Load(kNano, DType::kBf16, false), gpu = Load(kNano, DType::kBf16, true);
  for (int i = 0; i < kGenerated; ++i) {
    ids.push_back(ChoiceOf(EngineLogits(&cpu, ids, {static_cast<int>(ids.size())}).back()).token);
  }
  const std::vector<int> chunks = {static_cast<int>(n_prompt), 1};
  const Matrix of_cpu = EngineLogits(&cpu, ids, chunks), of_gpu = EngineLogits(&gpu, ids, chunks);
  int n_clear = 0;
  for (size_t row = n_prompt - 1; row + 1 < ids.size(); ++row) {
    const Choice choice = ChoiceOf(of_cpu[row]);
    if (choice.gap <= 2 * kBf16Bound) continue;
    ++n_clear;
    EXPECT_EQ(ChoiceOf(of_gpu[row]).token, choice.token) << row;
  }
  EXPECT_GT(n_clear, kGenerated / 4);
}

}  // namespace
}  // namespace kvlathe
