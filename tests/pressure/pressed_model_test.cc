// Attention over runs that were sealed again in fewer bits, against the literal decoder with a
// literal quantiser, and the bytes of their caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/memory/cpu_device.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/seal/seal_schedule.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceQuantizer;
using testing::RootMeanSquare;

constexpr int kTokens = 230, kPrompt = 150;

struct PressedCase {
  const char* spec;
  ReferenceQuantizer literal;
  bool has_latents = false;
  bool has_plain_rows = false;  // until they are sealed
};

void PrintTo(const PressedCase& c, std::ostream* out) { *out << c.spec; }

const PressedCase kPressedCases[] = {
    {"lathe(ratio=4,scales=static,open=8,under_pressure=8,run=64,newest=7,sink=4)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 4}},
    {"lathe(ratio=4,scales=static,open=16,under_pressure=8,run=64,newest=0,sink=0)",
     {.name = "split", .run = 64, .n_sink = 0},
     false,
     true},
    {"lathe(ratio=4,open=16,under_pressure=8,run=64,newest=32,sink=4)",
     {.name = "split", .run = 64, .newest = 32, .n_sink = 4, .has_token_scales = true},
     false,
     true},
    {"lathe(ratio=4,open=8,under_pressure=8,keys=before,run=64,newest=7,sink=1)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 1, .has_token_scales = true},
     true},
};

// Half of the bits of every channel, none of some of the last. `bits` are those of a head.
std::vector<int> FewerBits(const std::vector<int>& bits, BitSplit* split) {
  std::vector<int> fewer;
  for (size_t r = 0; r < bits.size(); r += 16) {
    const int half = bits[r] == 5 ? 2 : bits[r] / 2;
    const int n = r == 0 ? std::max(1, half) : half;
    if (n == 0) break;
    fewer.insert(fewer.end(), 16, n);
    split->channels[std::ranges::find(kSplitBits, n) - kSplitBits.begin()] += 16;
  }
  return fewer;
}

class PressedModelTest : public ::testing::TestWithParam<PressedCase> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory("pressed_model");
    reference_ = testing::WriteRandomModel(
        {.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .vocab = 256}, directory_, 31);
    ids_.resize(reference_.vocab);
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::mt19937_64(7));
    ids_.resize(kTokens);
    bases_ = GetParam().has_latents ? testing::RandomLatentBases(reference_, 23)
                                    : testing::RandomBases(reference_, 23);
    basis_ = testing::ToModelBasis(reference_, bases_);
    const testing::DrawnBits bits = testing::DrawSplitBits(&basis_);
    literal_ = GetParam().literal;
    literal_.n_prompt = literal_.n_prompt_tokens = kPrompt;
    literal_.rope = reference_.rope;
    literal_.rotary_dim = reference_.rotary_dim;
    literal_.key_bits = bits.of_keys;
    literal_.value_bits = bits.of_values;
    pressed_ = literal_;
    for (size_t h = 0; h < basis_.heads.size(); ++h) {
      EntryBits& fewer = basis_.heads[h].bits.pressed;
      pressed_.key_bits[h] = FewerBits(bits.of_keys[h], &fewer.k);
      pressed_.value_bits[h] = FewerBits(bits.of_values[h], &fewer.v);
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Model> Load(Isa isa, DType type) {
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights =
        ModelWeights::Load(*LoadModelConfig(directory_), type, MakeFileSource(*std::move(reader)),
                           MakeMachine(&threads_, isa));
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse(GetParam().spec), &basis_));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Where the oldest runs are pressed: the prompt's first where it ends, the next run where the
  // first of the answer is sealed.
  static std::vector<int64_t> PressPoints(const CacheLayout& layout) {
    return {kPrompt, NextSealPoint(layout, kPrompt, kPrompt)};
  }

  // Logits after every token. The oldest run is pressed at each press point.
  Matrix Logits(Model* model, int chunk, bool presses) {
    SequenceCache cache(&model->layout(), &pool_);
    cache.set_n_prompt(kPrompt);
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    const std::vector<int64_t> points = PressPoints(model->layout());
    Matrix logits;
    while (cache.n_tokens() < kTokens) {
      const int begin = cache.n_tokens();
      const int n = static_cast<int>(std::min<int64_t>({chunk, kTokens - begin, cache.max_step()}));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span(tokens).subspan(begin, n),
                              SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      if (presses && std::ranges::count(points, cache.n_tokens()) > 0) Press(model, &cache);
      ExpectBytes(cache, n);
    }
    return logits;
  }

  void Press(Model* model, SequenceCache* cache) {
    const auto run_idx = cache->RunToPress();
    ASSERT_TRUE(run_idx.has_value());
    const int64_t before = cache->bytes().total(), was_off = cache->bytes_pressed_off();
    // The pool is full, and stays within its budget.
    const PoolUsage usage = pool_.usage();
    const int64_t n_free = usage.budget_bytes - usage.used_bytes;
    ASSERT_TRUE(pool_.SetAside(n_free));
    const Status status = model->PressRun(cache, *run_idx);
    ASSERT_TRUE(status.ok()) << status;
    pool_.ReturnAside(n_free);
    EXPECT_EQ(pool_.usage().peak_bytes, usage.peak_bytes);
    EXPECT_LT(cache->bytes().total(), before);
    EXPECT_EQ(before - cache->bytes().total(), cache->bytes_pressed_off() - was_off);
    EXPECT_EQ(cache->pressed_runs().back(), *run_idx);
  }

  void ExpectBytes(const SequenceCache& cache, int n_step) {
    const std::vector<int> pressed = cache.pressed_runs();
    EXPECT_EQ(cache.bytes().total(), SequenceParts(cache.layout(), {.n_tokens = cache.n_tokens(),
                                                                    .n_step = n_step,
                                                                    .n_prompt = kPrompt,
                                                                    .pressed_runs = pressed})
                                         .total());
    EXPECT_EQ(cache.bytes().total(), pool_.usage().used_bytes);
  }

  // With `points` those of PressPoints; none: nothing is pressed.
  Matrix Expected(std::span<const int64_t> points) {
    std::vector<testing::ReferenceBasis> bases = bases_;
    for (testing::ReferenceBasis& basis : bases) basis.codes_rows = !GetParam().has_plain_rows;
    std::vector<int> n_seen(reference_.n_layers);
    return testing::ReferenceLogits(
        reference_, ids_, bases, literal_.n_sink, [&](int layer_idx, testing::ReferenceRows* rows) {
          const int n = ++n_seen[layer_idx];
          testing::SealLiterally(literal_, layer_idx, rows);
          const auto point = std::ranges::find(points, n);
          if (point == points.end()) return;
          // Runs are of 64 entries, and the oldest goes first.
          const int begin = 64 * static_cast<int>(point - points.begin());
          for (size_t g = 0; g < rows->keys.size(); ++g) {
            testing::SealHeadLiterally(pressed_, layer_idx * rows->keys.size() + g, begin,
                                       begin + 64, &rows->keys[g], &rows->values[g]);
          }
        });
  }

  std::string directory_;
  testing::ReferenceModel reference_;
  std::vector<int> ids_;
  std::vector<testing::ReferenceBasis> bases_;
  ModelBasis basis_;
  ReferenceQuantizer literal_, pressed_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

TEST_P(PressedModelTest, MatchesTheLiteralQuantiser) {
  const std::vector<int64_t> points = PressPoints(Load(Isa::kScalar, DType::kF32)->layout());
  const Matrix expected = Expected(points), before = Expected({});
  const Matrix plain = testing::ReferenceLogits(reference_, ids_, bases_, literal_.n_sink,
                                                [](int, testing::ReferenceRows*) {});
  // What codes lose, and what the step in bits loses of that. A number in F32 and in double may
  // take neighbouring codes, the more so where it was a code before and lies between two.
  const double loss = RootMeanSquare(expected, plain), step = RootMeanSquare(expected, before);
  ASSERT_GT(step, 0.1 * loss);
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(IsaName(isa));
    const std::unique_ptr<Model> f32 = Load(isa, DType::kF32);
    const Matrix whole = Logits(f32.get(), 512, true);
    EXPECT_LT(RootMeanSquare(whole, expected), 0.06 * loss + 1e-4);
    EXPECT_LT(RootMeanSquare(whole, expected), 0.15 * step);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 1, true), whole), 0.02 * loss + 1e-5);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 37, false), before), 0.06 * loss + 1e-4);
    const std::unique_ptr<Model> bf16 = Load(isa, DType::kBf16);
    EXPECT_LT(RootMeanSquare(Logits(bf16.get(), 64, true), expected), 0.7 * loss + 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, PressedModelTest, ::testing::ValuesIn(kPressedCases),
                         [](const auto& test) {
                           std::string name = test.param.spec;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

// A layer with a window has given back the first blocks of a run, or all of them.
TEST(PressedWindows, HoldTheBytesOfTheirLengths) {
  constexpr const char* kSpec = "lathe(ratio=4,under_pressure=8,run=128,newest=0,sink=4)";
  ThreadPool threads(2);
  ModelConfig c = SmallConfig();
  c.attention.kinds[0].window = 100;
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, DrawPressedSplits(4, 32, 4, 8, 9).value(), 9);
  auto weights = ModelWeights::Load(c, DType::kBf16, MakeRandomSource(3),
                                    MakeMachine(&threads, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  auto made = CreateModel(*std::move(weights), PartsOf(*Spec::Parse(kSpec), &basis));
  ASSERT_TRUE(made.ok()) << made.status();
  Model* const model = made->get();
  HostPool pool(int64_t{64} << 20);
  SequenceCache cache(&model->layout(), &pool);
  cache.set_n_prompt(300);
  int n_pressed = 0, n_partly = 0;
  for (int i = 0; cache.n_tokens() < 480; ++i) {
    const int n = static_cast<int>(std::min<int64_t>(23, cache.max_step()));
    ASSERT_TRUE(cache.Extend(n).ok());
    const std::vector<int32_t> ids(n, i % 100);
    const SequenceStep step{&cache, ids};
    ASSERT_TRUE(model->Forward({&step, 1}).ok());
    if (const auto run_idx = cache.RunToPress(); run_idx.has_value()) {
      const int first = cache.head(0, 0).runs()[*run_idx].first_block;
      const bool is_partly_there = cache.head(0, 0).blocks()[first].is_null();
      if (is_partly_there || i % 5 == 0) {
        ASSERT_TRUE(model->PressRun(&cache, *run_idx).ok());
        ++n_pressed;
        n_partly += is_partly_there ? 1 : 0;
      }
    }
    const std::vector<int> pressed = cache.pressed_runs();
    EXPECT_EQ(cache.bytes().total(), SequenceParts(cache.layout(), {.n_tokens = cache.n_tokens(),
                                                                    .n_step = n,
                                                                    .n_prompt = 300,
                                                                    .pressed_runs = pressed})
                                         .total());
    EXPECT_EQ(cache.bytes().total(), pool.usage().used_bytes);
  }
  EXPECT_GT(n_pressed, 2);
  EXPECT_GT(n_partly, 0);
}

// Memory of which there is none left at will.
class FailingDevice : public CpuDevice {
 public:
  uint32_t Allocate(int64_t n_bytes) override {
    return n_left_ == 0 || --n_left_ == 0 ? 0 : CpuDevice::Allocate(n_bytes);
  }
  // The n-th allocation from here on fails, and those behind it; 0: the next one.
  void FailAfter(int n) { n_left_ = n; }

 private:
  int n_left_ = 1 << 30;
};

// Wherever memory runs out, the cache goes on as if nobody had tried.
TEST_P(PressedModelTest, WithoutMemoryTheCacheIsAsItWas) {
  const std::unique_ptr<Model> model = Load(SelectIsa().value(), DType::kBf16);
  const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
  FailingDevice memory;
  BlockPool pool(int64_t{64} << 20, &memory);
  SequenceCache cache(&model->layout(), &pool);
  cache.set_n_prompt(kPrompt);
  const auto read = [&](SequenceCache* of, int until) {
    while (of->n_tokens() < until) {
      const int begin = of->n_tokens();
      const int n = static_cast<int>(std::min<int64_t>(until - begin, of->max_step()));
      ASSERT_TRUE(of->Extend(n).ok());
      const SequenceStep step{of, std::span(tokens).subspan(begin, n)};
      ASSERT_TRUE(model->Forward({&step, 1}).ok());
    }
  };
  const auto logits_behind = [&](const SequenceCache& of) -> std::vector<float> {
    auto copy = of.Copy();
    EXPECT_TRUE(copy.ok()) << copy.status();
    read(copy->get(), of.n_tokens() + 3);
    return {model->logits(0).begin(), model->logits(0).end()};
  };
  read(&cache, kPrompt + 20);
  const std::vector<float> before = logits_behind(cache);
  const int64_t n_bytes = cache.bytes().total();
  int n_failed = 0;
  for (int n = 0;; ++n) {
    memory.FailAfter(n);
    const Status status = model->PressRun(&cache, *cache.RunToPress());
    memory.FailAfter(1 << 30);
    if (status.ok()) break;
    ++n_failed;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(cache.pressed_runs().empty());
    EXPECT_EQ(cache.bytes().total(), n_bytes);
    EXPECT_EQ(pool.usage().used_bytes, n_bytes);
    EXPECT_EQ(logits_behind(cache), before);
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(n_failed, 2);
  EXPECT_EQ(cache.pressed_runs(), std::vector<int>{0});
  EXPECT_NE(logits_behind(cache), before);
}

}  // namespace
}  // namespace kvlathe
