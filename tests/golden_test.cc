// The engine against implementations of others: models and logits that Hugging Face transformers
// wrote (tests/golden), and trained models with golden logits beside their weights.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cpu/biting/biting_machine.h"
#include "io/files.h"
#include "io/safetensors/safetensors.h"
#include "loaded_model.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using testing::LoadedModel;
using testing::LoadModel;
using testing::MaxDifference;
using testing::MeanNll;

class TrainedModelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainedModelTest, MatchesTheIndependentImplementation) {
  const std::string directory = GetParam();
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory << " is not on this machine";
  auto golden = ReadJsonFile(directory + "/golden.json");
  ASSERT_TRUE(golden.ok()) << golden.status();
  for (Isa isa : AvailableIsas()) {
    const NumberTypes all_f32 = DType::kF32, all_bf16 = DType::kBf16;
    for (const NumberTypes& types :
         {all_f32, all_bf16, NumberTypes(all_f32.weights, DType::kF32, DType::kBf16),
          NumberTypes(all_bf16.weights, DType::kBf16, DType::kF32)}) {
      const bool is_exact = types.activations == DType::kF32 && types.rows == DType::kF32;
      // The file rounds logits to four decimals. BF16 activations carry 8 bits of mantissa: their
      // logits are within a few hundredths on these models, and their likelihood much closer.
      const double logit_bound = is_exact ? 1e-3 : 0.35;
      const double nll_bound = is_exact ? 2e-4 : 2e-2;
      LoadedModel loaded = LoadModel(directory, types, isa);
      for (const auto& example : golden->at("cases")) {
        const std::vector<int> ids = example.at("ids");
        SCOPED_TRACE(fmt::format("{}, activations {}, rows {}, {} tokens", IsaName(isa),
                                 DTypeName(types.activations), DTypeName(types.rows), ids.size()));
        const testing::Matrix logits = EngineLogits(&loaded, ids, {512});
        const testing::Matrix last = {example.at("last_logits")};
        EXPECT_LT(MaxDifference({logits.back()}, last), logit_bound);
        EXPECT_NEAR(MeanNll(logits, ids), example.at("nll").get<double>(), nll_bound);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TrainedModelTest,
                         ::testing::Values(KVLATHE_SOURCE_DIR "/models/lathe-nano",
                                           KVLATHE_SOURCE_DIR
                                           "/../shared/models/tinystories-656k"));

// A text and what transformers computes for it in F32 from the same BF16 weights.
struct GoldenText {
  std::vector<int> ids;
  testing::Matrix logits;
};

// The texts of a folder are prefixes of one: a tensor of logits each, named by its length.
std::vector<GoldenText> ReadGolden(const std::string& path, int vocab_size) {
  auto reader = SafetensorsReader::OpenFile(path);
  if (!reader.ok()) {
    ADD_FAILURE() << reader.status();
    return {};
  }
  const auto golden = nlohmann::json::parse(reader->metadata().at("golden"));
  const std::vector<int> ids = golden.at("ids");
  std::vector<GoldenText> texts;
  for (const auto& [name, view] : reader->tensors()) {
    const int n_tokens = std::stoi(name);
    EXPECT_EQ(view.dtype, DType::kF32) << name;
    EXPECT_EQ(view.shape, (std::vector<int64_t>{n_tokens, vocab_size}));
    if (::testing::Test::HasFailure()) return {};
    GoldenText& text = texts.emplace_back();
    text.ids.assign(ids.begin(), ids.begin() + n_tokens);
    const auto* row = reinterpret_cast<const float*>(view.data);
    for (int t = 0; t < n_tokens; ++t, row += vocab_size) {
      text.logits.emplace_back(row, row + vocab_size);
    }
  }
  return texts;
}

// Logits reach 8. Measured: at most 3.2e-5 (sums in other orders), where an error of 1e-4 in theta
// moves a logit by 4e-3, an epsilon of 2e-5 instead of 3e-5 by 9e-4 or more, and 0.045 instead of
// 0.044715 in GELU by 4e-4.
constexpr double kTransformersBound = 1e-4;

class TransformersTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TransformersTest, EveryLogitAgreesHoweverTheTextIsCut) {
  const std::string directory = std::string(KVLATHE_SOURCE_DIR "/tests/golden/") + GetParam();
  auto config = LoadModelConfig(directory);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto texts = ReadGolden(directory + "/golden_logits.safetensors", config->vocab_size);
  ASSERT_FALSE(texts.empty());
  for (const GoldenText& text : texts) {
    const int n_tokens = static_cast<int>(text.ids.size());
    for (Isa isa : AvailableIsas()) {
      LoadedModel loaded = LoadModel(directory, DType::kF32, isa, nullptr, 0, n_tokens);
      // At once, token by token, and in chunks that end inside blocks of the cache.
      for (const std::vector<int>& chunks :
           std::vector<std::vector<int>>{{n_tokens}, {1}, {30, 1, 17, 5}}) {
        const testing::Matrix logits = EngineLogits(&loaded, text.ids, chunks);
        EXPECT_LT(MaxDifference(logits, text.logits), kTransformersBound)
            << IsaName(isa) << ", " << n_tokens << " tokens, first step " << chunks[0];
      }
    }
  }
}

// With a cache that the host cannot touch, and the kernels that are the references of all others.
TEST_P(TransformersTest, EveryLogitAgreesOnADeviceThatBites) {
  const std::string directory = std::string(KVLATHE_SOURCE_DIR "/tests/golden/") + GetParam();
  auto config = LoadModelConfig(directory);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto texts = ReadGolden(directory + "/golden_logits.safetensors", config->vocab_size);
  ASSERT_FALSE(texts.empty());
  for (const GoldenText& text : texts) {
    const int n_tokens = static_cast<int>(text.ids.size());
    LoadedModel loaded = LoadModel(directory, DType::kF32, Isa::kScalar, nullptr, 0, n_tokens,
                                   [](ThreadPool* pool) -> std::shared_ptr<Machine> {
                                     return std::make_shared<BitingMachine>(pool);
                                   });
    EXPECT_LT(MaxDifference(EngineLogits(&loaded, text.ids, {30, 1, 17, 5}), text.logits),
              kTransformersBound)
        << n_tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TransformersTest,
                         ::testing::Values("llama", "qwen2", "mistral", "phi3", "phi3_longrope",
                                           "gpt2", "falcon_7b", "falcon_40b", "falcon_11b",
                                           "falcon_sequential", "qwen3", "gemma3"),
                         [](const auto& test) { return test.param; });

INSTANTIATE_TEST_SUITE_P(DenseFamilies, TransformersTest,
                         ::testing::Values("gemma", "smollm3", "olmo2", "olmo3", "granite", "glm4",
                                           "cohere", "cohere_qk_norm", "cohere2", "mistral3",
                                           "ministral3", "exaone4", "exaone4_global",
                                           "qwen2_window", "qwen3_window"),
                         [](const auto& test) { return test.param; });

INSTANTIATE_TEST_SUITE_P(ScalingsOfRope, TransformersTest,
                         ::testing::Values("llama_linear", "llama_dynamic", "llama_yarn",
                                           "llama_yarn_factor", "llama_yarn_mscale",
                                           "llama_yarn_untruncated", "llama_longrope"),
                         [](const auto& test) { return test.param; });

class GgufTest : public ::testing::TestWithParam<std::string> {};

// Permuted, transposed and regrouped rows, factors of RoPE as tensors, and metadata in the place of
// config.json.
TEST_P(GgufTest, AGgufFileGivesTheLogitsOfItsDirectory) {
  const std::string golden = KVLATHE_SOURCE_DIR "/tests/golden/";
  const std::string file = golden + "gguf/" + GetParam() + ".gguf";
  auto config = LoadModelConfig(file);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto texts =
      ReadGolden(golden + GetParam() + "/golden_logits.safetensors", config->vocab_size);
  ASSERT_FALSE(texts.empty());
  for (const GoldenText& text : texts) {
    const int n_tokens = static_cast<int>(text.ids.size());
    for (Isa isa : AvailableIsas()) {
      LoadedModel loaded = LoadModel(file, DType::kF32, isa, nullptr, 0, n_tokens);
      const testing::Matrix logits = EngineLogits(&loaded, text.ids, {n_tokens});
      EXPECT_LT(MaxDifference(logits, text.logits), kTransformersBound)
          << IsaName(isa) << ", " << n_tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufTest,
                         ::testing::Values("llama", "qwen2", "mistral", "phi3", "phi3_longrope",
                                           "gpt2", "falcon_7b", "falcon_40b", "falcon_11b", "qwen3",
                                           "gemma3"),
                         [](const auto& test) { return test.param; });

// Not those whose converter leaves out what the logits depend on: windows of Qwen, and scalings of
// RoPE that are dynamic, of LongRope, or of YaRN with mscale or without whole pairs.
INSTANTIATE_TEST_SUITE_P(DenseFamilies, GgufTest,
                         ::testing::Values("gemma", "smollm3", "olmo2", "olmo3", "granite", "glm4",
                                           "cohere", "cohere_qk_norm", "cohere2", "mistral3",
                                           "ministral3", "exaone4", "exaone4_global",
                                           "llama_linear", "llama_yarn"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace kvlathe
