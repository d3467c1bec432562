// DMC's forward pass for training: gradients against finite differences at frozen noise, the closed
// form of merged rows, and its hard form against the engine.
#include "training/retrofit/merging/dmc_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "training/retrofit/decoder.h"
#include "training/retrofit/model_directory.h"
#include "training/retrofit/testing/engine_logits.h"
#include "training/retrofit/testing/gradient_check.h"
#include "training/retrofit/testing/small_decoder.h"

namespace kvlathe {
namespace {

using torch::Tensor;

constexpr int64_t kTokens = 17;

// Logits around the offset, so that alpha is neither 0 nor 1.
struct Rows {
  explicit Rows(const DmcConfig& config) {
    torch::manual_seed(21);
    q = torch::randn({2, kTokens, 4, 6}, Double());
    k = torch::randn({2, kTokens, 2, 6}, Double());
    v = torch::randn({2, kTokens, 2, 5}, Double());
    const int64_t c = config.is_last ? 5 : 0;
    k.select(3, c).mul_(0.2).add_(config.offset);
    q.select(3, c).sub_(config.weight_offset);
    for (Tensor* x : {&q, &k, &v}) x->set_requires_grad(true);
  }
  Tensor q, k, v;
};

std::vector<DmcConfig> Conventions() {
  return {{},
          {.is_last = false,
           .offset = 0,
           .weight_offset = 1,
           .epsilon = 0,
           .zeroes_after_rope = false}};
}

TEST(DmcPass, WindowedSumIsItsFormulaAndHasItsGradient) {
  torch::manual_seed(3);
  Tensor x = torch::randn({1, 2, 7, 3}, Double()).set_requires_grad(true);
  Tensor coefficients = torch::rand({1, 2, 7, 4}, Double()).set_requires_grad(true);
  for (const auto& sum : {WindowedSum, WindowedSumByOperations}) {
    const Tensor y = sum(x, coefficients);
    for (const int64_t t : {0, 2, 6}) {
      Tensor expected = torch::zeros({3}, Double());
      for (int64_t j = 0; j <= std::min<int64_t>(t, 3); ++j) {
        expected = expected + coefficients[0][1][t][j] * x[0][1][t - j];
      }
      EXPECT_LT((y[0][1][t] - expected).abs().max().item<double>(), 1e-14) << t;
    }
    CheckGradient([&] { return Weigh(sum(x, coefficients)); }, x, 20);
    CheckGradient([&] { return Weigh(sum(x, coefficients)); }, coefficients, 20);
  }
}

// The recurrence of the paper, position by position: z_i = z_{i-1} alpha_i + omega_i, and the mean
// of the newest positions of the window alone.
TEST(DmcPass, CoefficientsAreThoseOfTheRecurrence) {
  torch::manual_seed(4);
  constexpr int kWindow = 5;
  const Tensor alpha = torch::rand({1, 1, kTokens}, Double());
  const Tensor omega = torch::rand({1, 1, kTokens}, Double());
  alpha[0][0][0] = 0;
  const Tensor coefficients = MergeCoefficients(alpha, omega, kWindow);
  for (int64_t t = 0; t < kTokens; ++t) {
    double z = 0;
    std::vector<double> weights;  // of the positions of the window, the oldest first
    const int64_t first = std::max<int64_t>(0, t - kWindow + 1);
    for (int64_t i = first; i <= t; ++i) {
      const double a = i == first ? 0 : alpha[0][0][i].item<double>();
      for (double& w : weights) w *= a;
      weights.push_back(omega[0][0][i].item<double>());
      z = z * a + weights.back();
    }
    for (int64_t i = first; i <= t; ++i) {
      EXPECT_NEAR(coefficients[0][0][t][t - i].item<double>(), weights[i - first] / z, 1e-14);
    }
  }
}

TEST(DmcPass, EveryTermHasItsGradientAtFrozenNoise) {
  for (const DmcConfig& config : Conventions()) {
    for (const DmcVariant variant :
         {DmcVariant{}, {.shares_decisions = true}, {.uniform_weights = true}}) {
      Rows rows(config);
      const auto merge = [&](DmcPass* pass) { return pass->Merge(rows.q, rows.k, rows.v); };
      const auto loss = [&] {
        DmcPass pass(config,
                     {.variant = variant, .temperature = 0.7, .window = 4, .noise_seed = 9});
        const DmcPass::Merged m = merge(&pass);
        return Weigh(m.q) + Weigh(m.k) + Weigh(m.v) + Weigh(m.effects.bias) + Weigh(pass.Alpha());
      };
      for (const Tensor& x : {rows.q, rows.k, rows.v}) CheckGradient(loss, x, 40);
      for (const DmcHinge hinge : {DmcHinge::kGlobal, DmcHinge::kLayer}) {
        CheckGradient(
            [&] {
              DmcPass pass(config, {.variant = variant, .temperature = 0.7, .noise_seed = 9});
              merge(&pass);
              merge(&pass);  // a second layer, with noise of its own
              return DmcLoss(pass.Alpha(),
                             {.cr = 8, .hinge = hinge, .is_consistent = !variant.shares_decisions});
            },
            rows.k, 30);
      }
    }
  }
}

TEST(DmcPass, NoiseIsAFunctionOfTheSeedAndTheLayer) {
  const DmcConfig config;
  const Rows rows(config);
  const auto alpha = [&](uint64_t seed) {
    DmcPass pass(config, {.noise_seed = seed});
    pass.Merge(rows.q, rows.k, rows.v);
    pass.Merge(rows.q, rows.k, rows.v);
    return pass.Alpha();
  };
  EXPECT_TRUE(torch::equal(alpha(1), alpha(1)));
  EXPECT_FALSE(torch::equal(alpha(1), alpha(2)));
  EXPECT_FALSE(torch::equal(alpha(1)[0], alpha(1)[1]));
}

TEST(DmcPass, TheLossIsWhatIsKeptBeyondTheTarget) {
  // Two layers of one head, two sequences of two positions; kept shares by layer 1 and 0.35.
  const Tensor alpha = torch::tensor({0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.8, 0.9}, Double())
                           .view({2, 2, 1, 2})
                           .set_requires_grad(true);
  const auto loss = [&](DmcLossOptions options) { return DmcLoss(alpha, options).item<double>(); };
  EXPECT_NEAR(loss({.cr = 2}), 1 - 2.6 / 8 - 0.5, 1e-12);
  EXPECT_NEAR(loss({.cr = 2, .hinge_weight = 10}), 10 * (1 - 2.6 / 8 - 0.5), 1e-12);
  EXPECT_NEAR(loss({.cr = 1}), 0, 1e-12);
  EXPECT_NEAR(loss({.cr = 2, .hinge = DmcHinge::kLayer}), 0.5 * (1 - 0.5), 1e-12);
  // Rounded, 3 of 4 positions of the first sequence are kept and 2 of 4 of the second.
  EXPECT_NEAR(loss({.cr = 2, .hinge = DmcHinge::kSequence}), 0.5 * (0.75 - 0.5), 1e-12);
  DmcLoss(alpha, {.cr = 4, .hinge = DmcHinge::kSequence}).backward();
  EXPECT_NEAR(alpha.grad().sum().item<double>(), -1, 1e-12) << "the gradient of what was rounded";
  const Tensor heads = torch::tensor({0.2, 0.6}, Double()).view({1, 1, 2, 1});
  EXPECT_NEAR(DmcLoss(heads, {.cr = 1, .is_consistent = true}).item<double>(), 0.2, 1e-12);
}

ModelConfig DmcModel(const DmcConfig& dmc) {
  ModelConfig config = SmallDecoder(/*tied=*/true);
  config.dmc = dmc;
  return config;
}

Tensor Tokens(int n) { return torch::arange(n, torch::kLong).mul(13).remainder(50).view({1, n}); }

// alpha = 0 everywhere is the model whose channel is zero.
TEST(DmcPass, WithoutMergingItIsTheBaseWithTheChannelZeroed) {
  DmcConfig dmc;
  dmc.offset = 100;
  dmc.zeroes_after_rope = false;
  const Decoder decoder(DmcModel(dmc), 5, torch::kDouble, torch::kCPU);
  DmcPass pass(dmc, {.decisions = DmcDecisions::kHard});
  const torch::NoGradGuard no_grad;
  const Tensor merged = decoder.Hidden(Tokens(40), torch::kDouble, &pass);
  EXPECT_EQ(pass.Alpha().sum().item<double>(), 0);
  for (const auto& [name, parameter] : decoder.parameters()) {
    if (!name.ends_with("q_proj.weight") && !name.ends_with("k_proj.weight")) continue;
    for (int64_t row = 15; row < parameter.size(0); row += 16) Tensor(parameter)[row].zero_();
  }
  const Tensor zeroed = decoder.Hidden(Tokens(40), torch::kDouble);
  EXPECT_LT((merged - zeroed).abs().max().item<double>(), 1e-12);
}

TEST(DmcPass, HardItIsTheEngine) {
  const std::string directory = ::testing::TempDir() + "/kvlathe_dmc_pass";
  for (DmcConfig dmc : Conventions()) {
    dmc.offset = 0;  // random weights merge half of the positions
    std::filesystem::remove_all(directory);
    const Decoder decoder(DmcModel(dmc), 8, torch::kFloat, torch::kCPU);
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder.parameters()) {
      if (parameter.dim() == 2) Tensor(parameter).mul_(8);
    }
    ASSERT_TRUE(SaveDecoder(decoder, DType::kF32, directory).ok());
    const Tensor tokens = Tokens(70);
    DmcPass pass(dmc, {.decisions = DmcDecisions::kHard});
    const Tensor expected = decoder.Logits(decoder.Hidden(tokens, torch::kFloat, &pass));
    const double merged = pass.Alpha().mean().item<double>();
    EXPECT_GT(merged, 0.2);
    EXPECT_LT(merged, 0.8);
    const std::vector<int32_t> ids(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + 70);
    for (const std::vector<float>& logits : StepwiseEngineLogits(directory, "dmc(sink=0)", ids)) {
      const Tensor found = torch::tensor(logits).view(expected.sizes());
      EXPECT_LT(((found - expected).abs().max() / expected.abs().max()).item<double>(), 2e-5);
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvlathe
