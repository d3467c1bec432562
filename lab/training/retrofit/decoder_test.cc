// Gradients of every module against finite differences in double, and the decoder against the
// engine.
#include "training/retrofit/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "io/files.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "runtime/machines/machine_choice.h"
#include "training/retrofit/causal_attention.h"
#include "training/retrofit/model_directory.h"
#include "training/retrofit/testing/gradient_check.h"
#include "training/retrofit/testing/small_decoder.h"

namespace kvlathe {
namespace {

using torch::Tensor;

TEST(DecoderGradient, RmsNorm) {
  torch::manual_seed(1);
  Tensor x = torch::randn({5, 12}, Double()).set_requires_grad(true);
  Tensor w = torch::randn({12}, Double()).set_requires_grad(true);
  const auto loss = [&] { return Weigh(RmsNorm(x, w, 1e-3, torch::kDouble)); };
  CheckGradient(loss, x, 20);
  CheckGradient(loss, w, 12);
}

TEST(DecoderGradient, SwiGlu) {
  torch::manual_seed(2);
  Tensor gate_up = torch::randn({4, 14}, Double()).mul_(2).set_requires_grad(true);
  CheckGradient([&] { return Weigh(SwiGlu(gate_up)); }, gate_up, 30);
}

TEST(DecoderGradient, Gelu) {
  torch::manual_seed(8);
  Tensor x = torch::randn({4, 9}, Double()).mul_(2).set_requires_grad(true);
  for (const bool is_tanh : {true, false}) {
    CheckGradient([&] { return Weigh(Gelu(x, is_tanh)); }, x, 36);
  }
}

TEST(DecoderGradient, Rotate) {
  torch::manual_seed(3);
  Tensor x = torch::randn({2, 3, 2, 8}, Double()).set_requires_grad(true);
  const Tensor angle = torch::randn({3, 4}, Double());
  CheckGradient([&] { return Weigh(Rotate(x, angle.cos(), angle.sin())); }, x, 30);
}

TEST(DecoderGradient, CausalAttention) {
  torch::manual_seed(4);
  Tensor q = torch::randn({2, 2, 3, 5, 4}, Double()).set_requires_grad(true);
  Tensor k = torch::randn({2, 2, 5, 4}, Double()).set_requires_grad(true);
  Tensor v = torch::randn({2, 2, 5, 4}, Double()).set_requires_grad(true);
  Tensor bias = torch::randn({2, 2, 5}, Double()).set_requires_grad(true);
  for (const Tensor& column_bias : {Tensor(), bias}) {
    const auto loss = [&] { return Weigh(CausalAttention(q, k, v, {.bias = column_bias})); };
    CheckGradient(loss, q, 20);
    CheckGradient(loss, k, 20);
    CheckGradient(loss, v, 20);
    if (column_bias.defined()) CheckGradient(loss, bias, 20);
  }
}

// Two blocks of query rows: what the second adds to gradients of the first's keys.
TEST(DecoderGradient, CausalAttentionOverBlocks) {
  torch::manual_seed(14);
  const int64_t n = 300;
  const Tensor q = torch::randn({1, 1, 2, n, 4}, Double());
  Tensor k = torch::randn({1, 1, n, 4}, Double()).set_requires_grad(true);
  Tensor bias = torch::randn({1, 1, n}, Double()).set_requires_grad(true);
  const Tensor v = torch::randn({1, 1, n, 4}, Double());
  const auto loss = [&] { return Weigh(CausalAttention(q, k, v, {.bias = bias})); };
  CheckGradient(loss, k, 10);
  CheckGradient(loss, bias, 10);
}

TEST(DecoderGradient, CrossEntropy) {
  torch::manual_seed(5);
  Tensor logits = torch::randn({4, 9}, Double()).set_requires_grad(true);
  const Tensor targets = torch::tensor({3, 5, 8, 0}, torch::kLong);
  const Tensor weights = torch::tensor({0.5, 0.0, 0.25, 0.25}, Double());
  CheckGradient([&] { return CrossEntropy(logits, targets).dot(weights); }, logits, 36);
  EXPECT_EQ(logits.grad()[1].abs().sum().item<double>(), 0) << "a weight of 0 counts";
}

ModelConfig SmallGpt2(MlpKind mlp) {
  ModelConfig config = SmallDecoder(mlp == MlpKind::kGeluTanh);
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  config.norms.kind = NormKind::kLayer;
  config.positions = PositionKind::kLearned;
  config.biases.qkv = config.biases.o = config.biases.mlp = true;
  config.n_heads = config.n_kv_heads = 2;
  config.max_seq_len = 80;
  config.mlp = mlp;
  return config;
}

std::vector<ModelConfig> SmallConfigs() {
  return {SmallDecoder(true), SmallDecoder(false), SmallGpt2(MlpKind::kGeluTanh),
          SmallGpt2(MlpKind::kGelu)};
}

// Norms and biases away from 1 and 0, where they start; matrices times `scale`.
void Stir(const Decoder& decoder, double scale) {
  torch::manual_seed(11);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder.parameters()) {
    if (parameter.dim() == 2) {
      Tensor(parameter).mul_(scale);
    } else {
      Tensor(parameter).add_(torch::randn_like(parameter), 0.3);
    }
  }
}

TEST(DecoderGradient, KlDivergence) {
  torch::manual_seed(15);
  const Tensor reference = torch::randn({4, 9}, Double());
  Tensor logits = torch::randn({4, 9}, Double()).set_requires_grad(true);
  const Tensor p = torch::softmax(reference, -1), q = torch::softmax(logits.detach(), -1);
  const Tensor expected = (p * (p / q).log()).sum(-1);
  EXPECT_LT((KlDivergence(reference, logits) - expected).abs().max().item<double>(), 1e-12);
  EXPECT_LT(KlDivergence(reference, reference + 3).abs().max().item<double>(), 1e-12);
  const Tensor weights = torch::tensor({0.5, 0.0, 0.25, 0.25}, Double());
  CheckGradient([&] { return KlDivergence(reference, logits).dot(weights); }, logits, 36);
}

TEST(DecoderGradient, WholeDecoderInEveryParameter) {
  for (const ModelConfig& config : SmallConfigs()) {
    const Decoder decoder(config, 6, torch::kDouble, torch::kCPU);
    Stir(decoder, 3);
    const Tensor tokens = torch::arange(14, torch::kLong).mul(11).remainder(50).view({2, 7});
    const Tensor targets = torch::arange(14, torch::kLong).mul(17).remainder(50);
    const auto loss = [&] {
      return CrossEntropy(decoder.Logits(decoder.Hidden(tokens, torch::kDouble)), targets).mean();
    };
    for (const auto& [name, parameter] : decoder.parameters()) {
      SCOPED_TRACE(name);
      CheckGradient(loss, parameter, 4);
    }
  }
}

// 300 rows are two blocks of query rows; every element against the formula.
TEST(Decoder, CausalAttentionEqualsTheFormula) {
  torch::manual_seed(7);
  const int64_t n = 300;
  const Tensor q = torch::randn({1, 2, 2, n, 8}, Double());
  const Tensor k = torch::randn({1, 2, n, 8}, Double());
  const Tensor v = torch::randn({1, 2, n, 8}, Double());
  const Tensor bias = torch::randn({1, 2, n}, Double());
  for (const bool has_bias : {false, true}) {
    const Tensor out = CausalAttention(q, k, v, {.bias = has_bias ? bias : Tensor()});
    for (const int64_t row : {0, 1, 255, 256, 299}) {
      const int64_t n_keys = row + 1;
      Tensor scores =
          torch::matmul(q[0][1][1][row], k[0][1].narrow(0, 0, n_keys).t()) / std::sqrt(8.0);
      if (has_bias) scores.narrow(0, 0, row).add_(bias[0][1].narrow(0, 0, row));
      const Tensor expected =
          torch::matmul(torch::softmax(scores, 0), v[0][1].narrow(0, 0, n_keys));
      EXPECT_LT((out[0][1][1][row] - expected).abs().max().item<double>(), 1e-12) << row;
    }
  }
}

TEST(Decoder, CountsParametersAndFlops) {
  const Decoder decoder(SmallDecoder(true), 1, torch::kFloat, torch::kCPU);
  // Embedding 50 x 32; a layer: q 64 x 32, k and v 32 x 32, o 32 x 64, ffn 3 x 48 x 32, norms 2
  // x 32.
  const int64_t layer_weights = 2 * 64 * 32 + 2 * 32 * 32 + 3 * 48 * 32;
  EXPECT_EQ(decoder.n_parameters(), 50 * 32 + 2 * (layer_weights + 64) + 32);
  EXPECT_DOUBLE_EQ(decoder.FlopsPerToken(10),
                   6.0 * (50 * 32 + 2 * layer_weights) + 6.0 * 2 * 10 * 4 * 16);
}

TEST(Decoder, CountsParametersAndFlopsOfGpt2) {
  const Decoder decoder(SmallGpt2(MlpKind::kGeluTanh), 1, torch::kFloat, torch::kCPU);
  // A layer: c_attn 32 x 96, c_proj 32 x 32, the MLP 2 x 48 x 32, each with a bias per output, and
  // two norms.
  const int64_t layer_weights = 32 * 96 + 32 * 32 + 2 * 48 * 32;
  const int64_t layer_biases = 96 + 32 + 48 + 32 + 4 * 32;
  EXPECT_EQ(decoder.n_parameters(), (50 + 80) * 32 + 2 * (layer_weights + layer_biases) + 2 * 32);
  EXPECT_DOUBLE_EQ(decoder.FlopsPerToken(10),
                   6.0 * (50 * 32 + 2 * layer_weights) + 6.0 * 2 * 10 * 2 * 16);
}

class ModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/kvlathe_retrofit_model_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

// Logits of the engine in F32 on the files that the trainer wrote.
std::vector<float> EngineLogits(const std::string& directory, const std::vector<int32_t>& tokens) {
  ThreadPool pool(2);
  HostPool blocks(int64_t{64} << 20);
  auto config = LoadModelConfig(directory);
  EXPECT_TRUE(config.ok()) << config.status();
  auto reader = SafetensorsReader::OpenModel(directory);
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto weights = ModelWeights::Load(*config, DType::kF32, MakeFileSource(*std::move(reader)),
                                    MakeMachine(&pool, Isa::kScalar));
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto model = CreateModel(*std::move(weights), {});
  EXPECT_TRUE(model.ok()) << model.status();
  SequenceCache cache(&(*model)->layout(), &blocks);
  EXPECT_TRUE(cache.Extend(static_cast<int>(tokens.size())).ok());
  const SequenceStep step{&cache, tokens, SequenceStep::Logits::kAll};
  EXPECT_TRUE((*model)->Forward({&step, 1}).ok());
  std::vector<float> logits;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto row = (*model)->logits(static_cast<int64_t>(t));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

// Largest difference relative to the largest logit; the trainer reads the stored weights back.
double EngineDifference(const Decoder& trained, DType dtype, const std::string& directory) {
  EXPECT_TRUE(SaveDecoder(trained, dtype, directory).ok());
  Decoder stored(trained.config(), 99, torch::kFloat, torch::kCPU);
  EXPECT_TRUE(LoadWeights(directory, &stored).ok());
  std::vector<int32_t> ids(70);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 13 % 50);
  const Tensor tokens = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).view({1, 70});
  const torch::NoGradGuard no_grad;
  const Tensor expected = stored.Logits(stored.Hidden(tokens, torch::kFloat));
  const std::vector<float> logits = EngineLogits(directory, ids);
  const Tensor found = torch::tensor(logits).view(expected.sizes());
  return ((found - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST_F(ModelFiles, EngineAgreesWithTheTrainer) {
  for (const ModelConfig& config : SmallConfigs()) {
    SCOPED_TRACE(config.model_type);
    const Decoder decoder(config, 8, torch::kFloat, torch::kCPU);
    // Larger than at the start of a training, so that the softmax has something to decide.
    Stir(decoder, 8);
    EXPECT_LT(EngineDifference(decoder, DType::kF32, directory_), 2e-5);
    EXPECT_LT(EngineDifference(decoder, DType::kBf16, directory_), 2e-5);
  }
}

TEST_F(ModelFiles, LayersThatAreMissingStartAsTheIdentity) {
  const torch::NoGradGuard no_grad;
  for (ModelConfig config : {SmallDecoder(true), SmallGpt2(MlpKind::kGeluTanh)}) {
    const Decoder smaller(config, 8, torch::kFloat, torch::kCPU);
    Stir(smaller, 2);
    ASSERT_TRUE(SaveDecoder(smaller, DType::kF32, directory_).ok());
    config.n_layers += 2;
    Decoder larger(config, 9, torch::kFloat, torch::kCPU);
    const Tensor ids = torch::randint(0, config.vocab_size, {2, 12}, torch::kLong);
    const auto logits = [&](const Decoder& d) { return d.Logits(d.Hidden(ids, torch::kFloat)); };
    EXPECT_FALSE(torch::allclose(logits(larger), logits(smaller), 1e-3, 1e-3));
    ASSERT_TRUE(LoadWeights(directory_, &larger).ok());
    EXPECT_TRUE(torch::equal(logits(larger), logits(smaller)));
  }
}

TEST(Decoder, CopiedKvHeadsComputeTheSameAndMeansOfThemAreThose) {
  const torch::NoGradGuard no_grad;
  const Decoder grouped(SmallDecoder(true), 8, torch::kFloat, torch::kCPU);
  Stir(grouped, 4);
  const Tensor ids = torch::arange(20, torch::kLong).view({1, 20});
  const auto hidden = [&](const Decoder& d) { return d.Hidden(ids, torch::kFloat); };
  const Decoder wide = WithKvHeads(grouped, 4);
  EXPECT_EQ(wide.config().n_kv_heads, 4);
  EXPECT_LT((hidden(wide) - hidden(grouped)).abs().max().item<double>(), 1e-4);
  const Decoder back = WithKvHeads(wide, 2);
  for (size_t i = 0; i < back.parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(back.parameters()[i].second, grouped.parameters()[i].second));
  }
  const Decoder one = WithKvHeads(grouped, 1);
  const auto& [name, k] = grouped.parameters()[3];
  ASSERT_EQ(name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_TRUE(
      torch::allclose(one.parameters()[3].second, (k.narrow(0, 0, 16) + k.narrow(0, 16, 16)) / 2));
}

TEST_F(ModelFiles, RefusesWhatItCannotTrainOrStore) {
  ModelConfig config = SmallDecoder(true);
  EXPECT_TRUE(CheckTrainable(config).ok());
  EXPECT_TRUE(CheckTrainable(SmallGpt2(MlpKind::kGelu)).ok());
  config.biases.qkv = true;
  EXPECT_EQ(CheckTrainable(config).code(), StatusCode::kUnimplemented);
  config = SmallDecoder(true);
  config.attention.kinds[0].rope.scaling = RopeConfig::Scaling::kLinear;
  EXPECT_EQ(CheckTrainable(config).code(), StatusCode::kUnimplemented);
  config = SmallDecoder(true);
  config.dms = DmsConfig{.query_channel = DmsConfig::QueryChannel{}};
  EXPECT_EQ(CheckTrainable(config).code(), StatusCode::kUnimplemented);

  const Decoder decoder(SmallDecoder(true), 1, torch::kFloat, torch::kCPU);
  EXPECT_FALSE(SaveDecoder(decoder, DType::kBf16, "/dev/null/model").ok());
  ASSERT_TRUE(SaveDecoder(decoder, DType::kBf16, directory_).ok());
  ModelConfig wider = SmallDecoder(true);
  wider.hidden_dim = 64;
  Decoder other(wider, 1, torch::kFloat, torch::kCPU);
  const Status status = LoadWeights(directory_, &other);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
}

}  // namespace
}  // namespace kvlathe
