// What gradients of a window of 1,024 tokens cost: a layer forwards, which every layer takes once,
// and back, which computes it again; and the output head. A model takes n_layers * (forward + back)
// + head a window.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/random.h"
#include "calibration/gradients/layer_pass.h"
#include "calibration/gradients/output_head.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kTokens = 1024;

ModelConfig ConfigOf(bool is_large) {
  ModelConfig c;
  c.model_type = "llama";
  c.n_layers = 2;
  c.hidden_dim = is_large ? 4096 : 576;
  c.n_heads = is_large ? 32 : 9;
  c.n_kv_heads = is_large ? 8 : 3;
  c.head_dim = is_large ? 128 : 64;
  c.ffn_dim = is_large ? 14336 : 1536;
  c.vocab_size = is_large ? 128256 : 49152;
  c.max_seq_len = 8192;
  c.tie_word_embeddings = true;
  return c;
}

struct Loaded {
  ThreadPool pool{AvailableProcessors()};
  Isa isa = SelectIsa().value();
  std::unique_ptr<ModelWeights> weights;
  std::vector<float> stream;  // [kTokens, hidden_dim]

  explicit Loaded(bool is_large) {
    const ModelConfig config = ConfigOf(is_large);
    weights = ModelWeights::Load(config, DType::kBf16, MakeRandomSource(1), MakeMachine(&pool, isa))
                  .value();
    Random random(2);
    for (int64_t i = 0; i < kTokens * config.hidden_dim; ++i) {
      stream.push_back(static_cast<float>(random.Normal()));
    }
  }
};

void BM_Layer(benchmark::State& state) {
  Loaded loaded(state.range(0) != 0);
  const bool is_back = state.range(1) != 0;
  LayerPass pass(loaded.weights.get(), &loaded.pool, loaded.isa, 32, /*kept_bytes=*/0);
  if (!pass.Prepare(kTokens).ok()) return state.SkipWithError("no memory");
  int next_layer = 0;
  for (auto _ : state) {
    // There are two layers, taken in turn, for a window unpacks the weights of every layer.
    const auto ways = is_back ? PassWays::kBoth : PassWays::kForward;
    if (!pass.Load(next_layer++ % 2, ways).ok()) return state.SkipWithError("no memory");
    std::vector<float> gradient = loaded.stream;
    if (is_back) {
      benchmark::DoNotOptimize(pass.RunBack(loaded.stream.data(), gradient.data()));
    } else {
      benchmark::DoNotOptimize(pass.Run(gradient.data()));
    }
  }
}
BENCHMARK(BM_Layer)
    ->ArgNames({"large", "back"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_OutputHead(benchmark::State& state) {
  Loaded loaded(state.range(0) != 0);
  OutputHead head(loaded.weights.get(), &loaded.pool, loaded.isa);
  const std::vector<double> uniform(kTokens, 0.5);
  for (auto _ : state) {
    std::vector<float> gradient = loaded.stream;
    if (!head.Run(uniform, gradient.data()).ok()) return state.SkipWithError("no memory");
  }
}
BENCHMARK(BM_OutputHead)
    ->ArgName("large")
    ->Arg(0)
    ->Arg(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvlathe
