// Caches of models whose attention changes where all scores of a query get the same number: heads
// have sink logits, and scores may be capped. Keys have biases, which methods take off them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "io/safetensors/safetensors.h"
#include "loaded_model.h"
#include "model/planned_model.h"
#include "model_shapes.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using testing::LoadedModel;
using testing::Matrix;
using testing::ReferenceModel;

constexpr int kTokens = 300, kPrompt = 220;

class AbsoluteScoresTest : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory("absolute_scores");
    reference_ = testing::WriteRandomModel(testing::GptOssWithoutWindows(3), directory_, 19);
    reference_.features.score_cap = GetParam();
    std::mt19937_64 random(5);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  LoadedModel Load(const std::string& spec_text, const ModelBasis* basis = nullptr) {
    LoadedModel loaded;
    loaded.pool = std::make_unique<ThreadPool>(2);
    loaded.machine = MakeMachine(loaded.pool.get(), AvailableIsas().back());
    loaded.blocks = std::make_unique<BlockPool>(int64_t{64} << 20, &loaded.machine->memory());
    auto config = LoadModelConfig(directory_);
    EXPECT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->has_sink_logits);
    config->score_cap = static_cast<float>(GetParam());
    auto reader = SafetensorsReader::OpenModel(directory_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    auto weights = ModelWeights::Load(*config, DType::kF32, MakeFileSource(*std::move(reader)),
                                      loaded.machine);
    EXPECT_TRUE(weights.ok()) << weights.status();
    loaded.weights = *std::move(weights);
    auto model = CreateModel(loaded.weights, PartsOf(*Spec::Parse(spec_text), basis));
    status_ = model.status();
    if (model.ok()) loaded.model = *std::move(model);
    return loaded;
  }

  // The mean divergence from the model without a compressed cache, behind the prompt.
  double DivergenceOf(const std::string& spec_text) {
    LoadedModel loaded = Load(spec_text);
    if (!status_.ok()) {
      ADD_FAILURE() << status_;
      return NAN;
    }
    const Matrix logits = EngineLogits(&loaded, ids_, {kPrompt, 1}, kPrompt);
    double sum = 0;
    for (int t = kPrompt; t < kTokens; ++t) sum += Divergence(plain_[t], logits[t]);
    return sum / (kTokens - kPrompt);
  }

  static double Divergence(const std::vector<double>& from, const std::vector<double>& to) {
    const auto log_sum = [](const std::vector<double>& row) {
      double sum = 0;
      for (const double x : row) sum += std::exp(x - row[0]);
      return row[0] + std::log(sum);
    };
    const double of_from = log_sum(from), of_to = log_sum(to);
    double divergence = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      divergence += std::exp(from[i] - of_from) * (from[i] - of_from - to[i] + of_to);
    }
    return divergence;
  }

  std::string directory_;
  ReferenceModel reference_;
  std::vector<int> ids_;
  Matrix plain_;
  Status status_;
};

TEST_P(AbsoluteScoresTest, CachesOfFewBitsAreCloseToTheLiteralDecoder) {
  plain_ = testing::ReferenceLogits(reference_, ids_);
  struct Case {
    const char* spec;
    double most;
  };
  // Those of the second half take keys' mean biases off them; 4 bits and dropped entries cost more.
  for (const Case& c :
       {Case{"none", 1e-6}, Case{"kvarn(key_bits=4,value_bits=4)", 0.3},
        Case{"turboquant(bits=4)", 0.3}, Case{"pool(n=2)", 2}, Case{"window(size=128)", 2},
        Case{"h2o(keep=0.5)", 2}, Case{"tova(budget=300)", 1e-6}, Case{"snapkv(budget=300)", 1e-6},
        Case{"int8", 0.01}, Case{"q8_0", 0.01}, Case{"mxfp4", 0.5}, Case{"kivi(bits=8)", 0.01},
        Case{"token(bits=8,group=16)", 0.01}, Case{"kivi(bits=8)+sparse", 0.01},
        Case{"kivi(bits=8)+lowrank", 0.01}, Case{"tova(budget=300)+kivi(bits=8)", 0.01}}) {
    const double divergence = DivergenceOf(c.spec);
    EXPECT_LT(divergence, c.most) << c.spec;
    EXPECT_GT(divergence, -1e-6) << c.spec;
  }
}

TEST_P(AbsoluteScoresTest, BasesThatTakeOffsetsOffValuesAreRefused) {
  std::vector<testing::ReferenceBasis> bases = testing::RandomBases(reference_, 3);
  ModelBasis basis = testing::ToModelBasis(reference_, bases);
  Load("fdc(rate=0.3)", &basis);
  EXPECT_TRUE(status_.ok()) << status_;
  basis.heads[1].value_offset.assign(basis.head_dim, 1.0f);
  Load("fdc(rate=0.3)", &basis);
  EXPECT_EQ(status_.code(), StatusCode::kUnimplemented);
  EXPECT_NE(std::string(MessageOf(status_)).find("offsets off values"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Caps, AbsoluteScoresTest, ::testing::Values(0.0, 4.0));

}  // namespace
}  // namespace kvlathe
