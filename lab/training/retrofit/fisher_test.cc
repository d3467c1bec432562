// Fisher weights against finite differences in double, of a loss that the test writes down itself.
#include "training/retrofit/fisher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

using torch::Tensor;

ModelConfig TinyLlama() {
  ModelConfig config;
  config.model_type = "llama";
  config.n_layers = 2;
  config.hidden_dim = 8;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 4;
  config.ffn_dim = 12;
  config.vocab_size = 20;
  config.max_seq_len = 16;
  return config;
}

ModelConfig TinyGpt2() {
  ModelConfig config = TinyLlama();
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  config.norms.kind = NormKind::kLayer;
  config.positions = PositionKind::kLearned;
  config.biases.qkv = config.biases.o = config.biases.mlp = true;
  config.n_heads = config.n_kv_heads = 2;
  config.mlp = MlpKind::kGeluTanh;
  return config;
}

const std::vector<std::vector<int64_t>> kSequences = {
    {3, 17, 5, 0, 11, 2, 9}, {8, 8, 1, 19, 4, 4, 13}, {2, 6}};

// Every token predicts the next one.
double LiteralLoss(const Decoder& decoder, const std::vector<int64_t>& tokens) {
  const torch::NoGradGuard no_grad;
  const Tensor input = torch::tensor(tokens, torch::kLong).view({1, -1});
  const Tensor logits = decoder.Logits(decoder.Hidden(input, torch::kDouble)).contiguous();
  const double* row = logits.data_ptr<double>();
  const int64_t n_words = logits.size(1);
  double sum = 0;
  for (size_t t = 0; t + 1 < tokens.size(); ++t, row += n_words) {
    double total = 0;
    for (int64_t w = 0; w < n_words; ++w) total += std::exp(row[w]);
    sum += std::log(total) - row[tokens[t + 1]];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

// The mean over `columns` of sqrt(mean of squared central differences).
double LiteralWeight(const Decoder& decoder, Tensor parameter, int64_t first, int64_t n) {
  constexpr double kStep = 1e-5;
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int64_t i = 0; i < parameter.size(0); ++i) {
    for (int64_t j = first; j < first + n; ++j) {
      const Tensor element = parameter[i][j];
      const double at = element.item<double>();
      double square = 0;
      for (const auto& sequence : kSequences) {
        element.fill_(at + kStep);
        const double above = LiteralLoss(decoder, sequence);
        element.fill_(at - kStep);
        const double below = LiteralLoss(decoder, sequence);
        element.fill_(at);
        square += std::pow((above - below) / (2 * kStep), 2);
      }
      sum += std::sqrt(square / static_cast<double>(kSequences.size()));
    }
  }
  return sum / static_cast<double>(parameter.size(0) * n);
}

Tensor ParameterOf(const Decoder& decoder, const std::string& wanted) {
  for (const auto& [name, parameter] : decoder.parameters()) {
    if (name == wanted) return parameter;
  }
  ADD_FAILURE() << wanted;
  return {};
}

// Weights large enough for attention to matter, different in every layer.
Decoder StirredDecoder(const ModelConfig& config) {
  Decoder decoder(config, 4, torch::kDouble, torch::kCPU);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder.parameters()) {
    if (parameter.dim() == 2) Tensor(parameter).mul_(20 + 10 * LayerOf(name));  // -1: no layer
  }
  return decoder;
}

TEST(MeasureFisher, EqualsFiniteDifferencesOfLlama) {
  const Decoder decoder = StirredDecoder(TinyLlama());
  const StatusOr<FisherWeights> weights = MeasureFisher(decoder, kSequences);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->n_tokens, 16);
  for (int l = 0; l < 2; ++l) {
    const std::string at = fmt::format("model.layers.{}.self_attn.", l);
    const double k = LiteralWeight(decoder, ParameterOf(decoder, at + "k_proj.weight"), 0, 8);
    const double v = LiteralWeight(decoder, ParameterOf(decoder, at + "v_proj.weight"), 0, 8);
    EXPECT_GT(std::min(k, v), 1e-4);
    EXPECT_NEAR(weights->k[l], k, 1e-5 * k);
    EXPECT_NEAR(weights->v[l], v, 1e-5 * v);
  }
}

TEST(MeasureFisher, EqualsFiniteDifferencesOfGpt2) {
  const Decoder decoder = StirredDecoder(TinyGpt2());
  const StatusOr<FisherWeights> weights = MeasureFisher(decoder, kSequences);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (int l = 0; l < 2; ++l) {
    const Tensor qkv = ParameterOf(decoder, fmt::format("transformer.h.{}.attn.c_attn.weight", l));
    const double k = LiteralWeight(decoder, qkv, 8, 8), v = LiteralWeight(decoder, qkv, 16, 8);
    EXPECT_GT(std::min(k, v), 1e-4);
    EXPECT_NEAR(weights->k[l], k, 1e-5 * k);
    EXPECT_NEAR(weights->v[l], v, 1e-5 * v);
  }
}

TEST(MeasureFisher, RefusesGradientsThatAreNotFinite) {
  const Decoder decoder = StirredDecoder(TinyLlama());
  {
    const torch::NoGradGuard no_grad;
    ParameterOf(decoder, "model.norm.weight").fill_(std::nan(""));
  }
  EXPECT_EQ(MeasureFisher(decoder, kSequences).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
