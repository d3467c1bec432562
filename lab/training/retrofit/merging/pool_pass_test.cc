// Pooling in training: its gradient, and the engine's `pool` token by token.
#include "training/retrofit/merging/pool_pass.h"

#include <gtest/gtest.h>

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

TEST(PoolPass, RowsAreMeansOfTheirEntrySoFar) {
  torch::manual_seed(6);
  Tensor k = torch::randn({2, 11, 2, 4}, Double()).set_requires_grad(true);
  Tensor v = torch::randn({2, 11, 2, 3}, Double()).set_requires_grad(true);
  const Tensor q = torch::randn({2, 11, 4, 4}, Double());
  const PoolRecipe recipe{.every = 3, .n_sink = 2};
  const auto merge = [&] { return PoolPass(recipe).Merge(q, k, v); };
  const MergePass::Merged merged = merge();
  EXPECT_TRUE(torch::equal(merged.q, q));
  // Position t and the first of its entry; who is hidden behind it.
  const std::vector<int64_t> first = {0, 1, 2, 2, 2, 5, 5, 5, 8, 8, 8};
  for (int64_t t = 0; t < 11; ++t) {
    const auto mean = [&](const Tensor& x) {
      return x.narrow(1, first[t], t - first[t] + 1).mean(1);
    };
    EXPECT_LT((merged.k.select(1, t) - mean(k)).abs().max().item<double>(), 1e-14) << t;
    EXPECT_LT((merged.v.select(1, t) - mean(v)).abs().max().item<double>(), 1e-14) << t;
    const bool is_hidden = t < 10 && first[t + 1] <= t;
    EXPECT_EQ(merged.effects.bias[1][1][t].item<double>(), is_hidden ? kMaskedScore : 0) << t;
  }
  const auto loss = [&] {
    const MergePass::Merged m = merge();
    return Weigh(m.k) + Weigh(m.v);
  };
  for (const Tensor& x : {k, v}) CheckGradient(loss, x, 30);
}

ModelConfig Gpt2() {
  ModelConfig config = SmallDecoder(/*tied=*/true);
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  config.n_heads = config.n_kv_heads = 2;
  config.mlp = MlpKind::kGeluTanh;
  return config;
}

TEST(PoolPass, ItIsTheEngine) {
  const std::string directory = ::testing::TempDir() + "/kvlathe_pool_pass";
  const Tensor tokens = torch::arange(70, torch::kLong).mul(13).remainder(50).view({1, 70});
  const std::vector<int32_t> ids(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + 70);
  for (const ModelConfig& config : {SmallDecoder(/*tied=*/true), Gpt2()}) {
    std::filesystem::remove_all(directory);
    const Decoder decoder(config, 8, torch::kFloat, torch::kCPU);
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder.parameters()) {
      if (parameter.dim() == 2) Tensor(parameter).mul_(8);
    }
    ASSERT_TRUE(SaveDecoder(decoder, DType::kF32, directory).ok());
    const auto logits = [&](MergePass* pass) {
      return decoder.Logits(decoder.Hidden(tokens, torch::kFloat, pass));
    };
    const Tensor plain = logits(nullptr);
    for (const PoolRecipe& recipe : {PoolRecipe{.every = 4}, {.every = 3, .n_sink = 5}}) {
      PoolPass pass(recipe);
      const Tensor expected = logits(&pass);
      const double size = expected.abs().max().item<double>();
      EXPECT_GT((plain - expected).abs().max().item<double>(), 1e-3 * size);
      const std::string spec = fmt::format("pool(n={},sink={})", recipe.every, recipe.n_sink);
      for (const std::vector<float>& row : StepwiseEngineLogits(directory, spec, ids)) {
        const Tensor found = torch::tensor(row).view(expected.sizes());
        EXPECT_LT((found - expected).abs().max().item<double>(), 2e-5 * size) << spec;
      }
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvlathe
