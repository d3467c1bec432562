// What rows of 4,096 positions cost a codec: to be stored, beside what the engine's own steps take
// of that (rotating, appending and sealing), and to be read back, beside the engine's reading of
// sealed blocks. "of_engine" is the engine's time over all of it.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/threads.h"
#include "codec/row_codec.h"
#include "codec/row_shape.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kTokens = 4096, kLayers = 4, kHeads = 8, kHeadDim = 128;
constexpr const char* kSpecs[] = {"none", "kivi(bits=4)", "kcvt(bits=4)", "turboquant(bits=3)",
                                  "q8_0"};

struct Stored {
  ThreadPool pool{AvailableProcessors()};
  std::unique_ptr<RowCodec> codec;
  std::vector<float> k, v;  // of one layer

  Stored(const char* spec, DType row_type) {
    const ModelConfig config = ConfigOf({.n_layers = kLayers,
                                         .n_heads = 4 * kHeads,
                                         .n_kv_heads = kHeads,
                                         .head_dim = kHeadDim,
                                         .max_positions = 2 * kTokens,
                                         .rope_theta = 10000})
                                   .value();
    codec =
        RowCodec::Create(config, {.spec = spec, .row_type = row_type}, MakeMachine(&pool).value())
            .value();
    Random random(1);
    for (int64_t i = 0; i < int64_t{kTokens} * kHeads * kHeadDim; ++i) {
      k.push_back(static_cast<float>(random.Normal()));
      v.push_back(static_cast<float>(random.Normal()));
    }
  }
  std::unique_ptr<CodecSequence> Encode() {
    auto sequence = codec->NewSequence();
    for (int l = 0; l < kLayers; ++l) {
      const CodecStep step = {sequence.get(), kTokens};
      std::vector<Status> failures;
      const Status run = codec->Run(
          {&step, 1}, {.layer_idx = l, .k = k.data(), .v = v.data(), .scale = {}}, &failures);
      if (!run.ok() || !failures.front().ok()) return nullptr;
    }
    return sequence;
  }
};

void BM_Encode(benchmark::State& state) {
  const char* const spec = kSpecs[state.range(0)];
  Stored stored(spec, state.range(1) != 0 ? DType::kBf16 : DType::kF32);
  const ForwardProfile before = stored.codec->profile();
  double seconds = 0;
  for (auto _ : state) {
    const Stopwatch watch;
    const auto sequence = stored.Encode();
    const double taken = watch.Seconds();
    if (sequence == nullptr) return state.SkipWithError("failed");
    state.SetIterationTime(taken);
    seconds += taken;
  }
  ForwardProfile spent = stored.codec->profile();
  spent.Add(before, -1);
  state.counters["of_engine"] = (spent.rotate + spent.append + spent.seal) / seconds;
  state.SetItemsProcessed(state.iterations() * kTokens * kLayers);
  state.SetLabel(spec);
}

void BM_Decode(benchmark::State& state) {
  const char* const spec = kSpecs[state.range(0)];
  Stored stored(spec, state.range(1) != 0 ? DType::kBf16 : DType::kF32);
  const auto sequence = stored.Encode();
  const int64_t n = int64_t{kLayers} * kTokens * kHeads * kHeadDim;
  std::vector<float> k(n), v(n);
  const ForwardProfile before = stored.codec->profile();
  double seconds = 0;
  for (auto _ : state) {
    const Stopwatch watch;
    if (!stored.codec->Decode(*sequence, k.data(), v.data()).ok()) {
      return state.SkipWithError("failed");
    }
    state.SetIterationTime(watch.Seconds());
    seconds += watch.Seconds();
  }
  state.counters["of_engine"] = (stored.codec->profile().rebuild - before.rebuild) / seconds;
  state.SetItemsProcessed(state.iterations() * kTokens * kLayers);
  state.SetLabel(spec);
}

void EachSpec(benchmark::internal::Benchmark* benchmark) {
  for (int spec = 0; spec < static_cast<int>(std::size(kSpecs)); ++spec) {
    for (const int is_bf16 : {0, 1}) benchmark->Args({spec, is_bf16});
  }
  benchmark->Unit(benchmark::kMillisecond)->UseManualTime();
}
BENCHMARK(BM_Encode)->Apply(EachSpec);
BENCHMARK(BM_Decode)->Apply(EachSpec);

}  // namespace
}  // namespace kvlathe
