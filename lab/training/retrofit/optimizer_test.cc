#include "training/retrofit/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlathe {
namespace {

using torch::Tensor;

TEST(Orthogonalise, BringsSingularValuesNearOne) {
  torch::manual_seed(3);
  for (const auto& [rows, columns] : {std::pair{20, 50}, {50, 20}, {30, 30}}) {
    const Tensor g = torch::randn({rows, columns}, torch::kDouble);
    const Tensor o = Orthogonalise(g, torch::kDouble);
    const Tensor values = std::get<1>(torch::linalg_svd(o, false));
    EXPECT_LT(values.max().item<double>(), 1.25);
    // Five steps lift singular values above 1/100 of the largest; a square random matrix has one
    // or two below.
    EXPECT_GT(values[values.numel() - 4].item<double>(), 0.6);
    // The same singular vectors: o g^T is symmetric and positive.
    const Tensor product = torch::mm(o, g.t());
    EXPECT_LT((product - product.t()).abs().max().item<double>(), 1e-9);
  }
}

ModelConfig OneLayer() {
  ModelConfig config;
  config.model_type = "llama";
  config.n_layers = 1;
  config.hidden_dim = config.head_dim = config.ffn_dim = 16;
  config.n_heads = config.n_kv_heads = 1;
  config.vocab_size = 8;
  config.max_seq_len = 8;
  return config;
}

// Two steps of AdamW on one parameter against the published update.
TEST(Optimizer, AdamWFollowsTheFormula) {
  const Decoder decoder(OneLayer(), 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.clip_norm = 1e6;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  Tensor w = decoder.parameters()[0].second;
  const double lr = 0.01;
  double x = w[0][0].item<double>(), m = 0, v = 0;
  for (int step = 1; step <= 2; ++step) {
    for (const auto& [name, parameter] : decoder.parameters()) {
      Tensor(parameter).mutable_grad() = torch::full_like(parameter, 0.1 * step);
    }
    optimizer.Step(lr);
    const double g = 0.1 * step;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    x -= lr * 0.1 * x;
    x -= lr * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    EXPECT_NEAR(w[0][0].item<double>(), x, 1e-6) << step;
    EXPECT_FALSE(w.grad().defined()) << "gradients are left behind";
  }
}

// The rows of W_K that decide move as with another learning rate, all else as without.
TEST(Optimizer, DecidingRowsHaveARateOfTheirOwn) {
  ModelConfig config = OneLayer();
  config.n_kv_heads = config.n_heads = 2;
  config.head_dim = 8;
  config.dmc.emplace();
  const auto move = [&](double learning_rate, double deciding_rate) {
    Decoder decoder(config, 1, torch::kFloat, torch::kCPU);
    Optimizer optimizer(&decoder, {}, torch::kFloat, deciding_rate);
    torch::manual_seed(2);
    for (const auto& [name, parameter] : decoder.parameters()) {
      Tensor(parameter).mutable_grad() = torch::randn_like(parameter.detach());
    }
    optimizer.Step(learning_rate);
    return decoder;
  };
  const Decoder slow = move(0.01, 1), fast = move(0.03, 1), mixed = move(0.01, 3);
  for (size_t i = 0; i < slow.parameters().size(); ++i) {
    const auto& [name, w] = mixed.parameters()[i];
    Tensor expected = slow.parameters()[i].second.detach().clone();
    if (name.ends_with("k_proj.weight")) {
      for (const int64_t row : {7, 15}) expected[row].copy_(fast.parameters()[i].second[row]);
    }
    EXPECT_LT((w - expected).abs().max().item<double>(), 1e-7) << name;
    EXPECT_GT((w - fast.parameters()[i].second).abs().max().item<double>(), 1e-3) << name;
  }
}

TEST(Optimizer, ClipsAndLeavesOutStepsThatAreNotFinite) {
  const Decoder decoder(OneLayer(), 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.muon = true;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  const auto set_gradients = [&](double value) {
    for (const auto& [name, parameter] : decoder.parameters()) {
      Tensor(parameter).mutable_grad() = torch::full_like(parameter, value);
    }
  };
  std::vector<Tensor> before;
  for (const auto& [name, parameter] : decoder.parameters()) {
    before.push_back(parameter.detach().clone());
  }
  set_gradients(INFINITY);
  EXPECT_FALSE(std::isfinite(optimizer.Step(0.01)));
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i], decoder.parameters()[i].second));
  }
  set_gradients(2.0);
  EXPECT_NEAR(optimizer.Step(0.01), 2 * std::sqrt(static_cast<double>(decoder.n_parameters())),
              1e-3);
  // A constant gradient has one singular value, which the five steps take from 1 along the
  // polynomial; the move is that times 0.2 sqrt(16) x rate, whatever the gradient's size.
  double singular = 1;
  for (int i = 0; i < 5; ++i) {
    singular = 3.4445 * singular - 4.7750 * std::pow(singular, 3) + 2.0315 * std::pow(singular, 5);
  }
  const auto& [name, q] = decoder.parameters()[2];
  ASSERT_EQ(name, "model.layers.0.self_attn.q_proj.weight");
  const Tensor moved = before[2] * (1 - 0.01 * 0.1) - q.detach();
  EXPECT_NEAR(moved.norm().item<double>(), 0.01 * 0.2 * 4 * singular, 1e-5);
}

// In one matrix the small gradient of K would vanish beside that of Q.
TEST(Optimizer, MuonMovesThePartsOfAFusedProjectionAlike) {
  ModelConfig config = OneLayer();
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  const Decoder decoder(config, 1, torch::kFloat, torch::kCPU);
  OptimizerSettings settings;
  settings.muon = true;
  settings.weight_decay = 0;
  Optimizer optimizer(&decoder, settings, torch::kFloat);
  for (const auto& [name, parameter] : decoder.parameters()) {
    Tensor(parameter).mutable_grad() = torch::zeros_like(parameter);
  }
  const auto& [name, c_attn] = decoder.parameters()[4];
  ASSERT_EQ(name, "transformer.h.0.attn.c_attn.weight");
  const Tensor before = c_attn.detach().clone();
  const std::vector<Tensor> gradients = Tensor(c_attn).mutable_grad().chunk(3, 1);
  for (int i = 0; i < 3; ++i) Tensor(gradients[i]).fill_(std::pow(0.1, i));
  optimizer.Step(0.01);
  const std::vector<Tensor> moved = (before - c_attn.detach()).chunk(3, 1);
  const double of_q = moved[0].norm().item<double>();
  EXPECT_GT(of_q, 1e-3);
  for (int i = 1; i < 3; ++i) EXPECT_NEAR(moved[i].norm().item<double>(), of_q, 1e-3 * of_q) << i;
}

}  // namespace
}  // namespace kvlathe
