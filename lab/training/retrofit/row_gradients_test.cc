// The engine's gradients of stored rows against libtorch's.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "calibration/gradients/decoder_gradients.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"
#include "training/retrofit/model_directory.h"
#include "training/retrofit/testing/small_decoder.h"

namespace kvlathe {
namespace {

using torch::Tensor;

constexpr int kWindowTokens = 70;

// Merges nothing, and keeps the rows of every layer for their gradients.
class KeepRows : public MergePass {
 public:
  Merged Merge(const Tensor& q, const Tensor& k, const Tensor& v) override {
    for (const auto& [kept, rows] : {std::pair{&k_pre, &k}, {&value, &v}}) {
      kept->push_back(rows->contiguous());
      kept->back().retain_grad();
    }
    return {q, k_pre.back(), value.back(), {}};
  }
  Tensor AfterRope(const Tensor& qk) const override {
    turned.push_back(qk.contiguous());
    turned.back().retain_grad();
    return turned.back();
  }
  std::vector<Tensor> k_pre, value;
  mutable std::vector<Tensor> turned;  // queries before keys
};

ModelConfig SmallGpt2() {
  ModelConfig config = SmallDecoder(false);
  config.model_type = "gpt2";
  config.layout = WeightLayout::kGpt2;
  config.norms.kind = NormKind::kLayer;
  config.positions = PositionKind::kLearned;
  config.biases.qkv = config.biases.o = config.biases.mlp = true;
  config.n_heads = config.n_kv_heads = 2;
  config.mlp = MlpKind::kGeluTanh;
  config.tie_word_embeddings = true;
  return config;
}

// Half the sum of products of rows [n_tokens, heads * head_dim] per token.
Tensor FisherOf(const Tensor& gradients) {
  const Tensor rows = gradients.reshape({kWindowTokens, -1}).to(torch::kDouble);
  return torch::mm(rows.t(), rows) / (2.0 * kWindowTokens);
}

void ExpectSame(const Tensor& found, const Tensor& expected, const char* what, int layer_idx) {
  const double error = (FisherOf(found) - FisherOf(expected)).norm().item<double>();
  EXPECT_LT(error, 1e-4 * FisherOf(expected).norm().item<double>()) << what << " " << layer_idx;
  EXPECT_LT((found.flatten() - expected.flatten()).norm().item<double>(),
            1e-4 * expected.norm().item<double>())
      << what << " " << layer_idx;
}

TEST(RowGradientsTest, AreThoseOfLibtorchForTheSameTokens) {
  for (const ModelConfig& config : {SmallDecoder(false), SmallDecoder(true), SmallGpt2()}) {
    SCOPED_TRACE(config.model_type);
    Decoder decoder(config, 3, torch::kDouble, torch::kCPU);
    {
      const torch::NoGradGuard no_grad;  // so that attention is far from uniform
      for (const auto& [name, parameter] : decoder.parameters()) {
        if (LayerOf(name) >= 0 && parameter.dim() == 2) parameter.mul_(10);
      }
    }
    const std::string directory = ::testing::TempDir() + "/kvlathe_row_gradients";
    ASSERT_TRUE(SaveDecoder(decoder, DType::kF32, directory).ok());
    ThreadPool pool(2);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory), DType::kF32,
                                      MakeFileSource(*SafetensorsReader::OpenModel(directory)),
                                      MakeMachine(&pool, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    std::vector<int32_t> ids;
    for (int t = 0; t < kWindowTokens; ++t) ids.push_back(t * 7919 % config.vocab_size);

    // [n_layers] each, of all queries, near ones too.
    std::vector<Tensor> k_post(config.n_layers), k_pre(config.n_layers), v(config.n_layers);
    const int64_t n = int64_t{kWindowTokens} * config.n_kv_heads * config.head_dim;
    const auto copy = [n](const float* from) {
      return torch::tensor(std::vector<double>(from, from + n), torch::kDouble);
    };
    DecoderGradients gradients(weights->get(), &pool, SelectIsa().value(), 0);
    const auto drawn = gradients.Run(ids, 5, [&](const RowGradients& shown) {
      k_post[shown.layer_idx] = copy(shown.k_post);
      k_pre[shown.layer_idx] = copy(shown.k_pre);
      v[shown.layer_idx] = copy(shown.v);
    });
    ASSERT_TRUE(drawn.ok()) << drawn.status();

    KeepRows rows;
    const Tensor tokens =
        torch::tensor(std::vector<int64_t>(ids.begin(), ids.end()), torch::kLong).view({1, -1});
    const Tensor targets =
        torch::tensor(std::vector<int64_t>(drawn->ids.begin(), drawn->ids.end()), torch::kLong);
    const Tensor log_likelihood =
        -CrossEntropy(decoder.Logits(decoder.Hidden(tokens, torch::kDouble, &rows)), targets).sum();
    log_likelihood.backward();
    EXPECT_NEAR(drawn->log_likelihood, log_likelihood.item<double>(), 1e-2);
    for (int l = 0; l < config.n_layers; ++l) {
      const Tensor turned = rows.turned[l].grad().narrow(2, config.n_heads, config.n_kv_heads);
      ExpectSame(k_post[l], turned.contiguous(), "keys", l);
      ExpectSame(k_pre[l], rows.k_pre[l].grad(), "keys before RoPE", l);
      ExpectSame(v[l], rows.value[l].grad(), "values", l);
    }
    std::filesystem::remove_all(directory);
  }
}

}  // namespace
}  // namespace kvlathe
