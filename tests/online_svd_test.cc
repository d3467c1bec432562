// The forward with svd-online against the literal decoder whose rows are projected literally.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "analysis/bases/fdc_reference.h"
#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::RootMeanSquare;

constexpr int kTokens = 390, kHeadDim = 32;

struct Case {
  const char* spec;
  int n_prompt, n_sink, rank;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec << " prompt " << c.n_prompt; }

const Case kCases[] = {
    {"svd-online", 330, 4, 16},
    {"svd-online(rate=0.5,sink=0)", 128, 0, 16},
    {"svd-online(rate=0.6,sink=4)", 40, 4, 16},  // the prompt fills no block
    {"svd-online(rate=0.3,sink=0)", 200, 0, 32},
};

// Projects the rows of full blocks, from where the prompt ends, on the right singular vectors of
// the first run.
class LiteralSvd {
 public:
  LiteralSvd(const Case& c, int n_layers) : c_(c), seen_(n_layers), sealed_(n_layers) {
    rotations_.resize(n_layers);
  }

  void operator()(int layer, testing::ReferenceRows* rows) {
    if (++seen_[layer] < c_.n_prompt) return;
    const int n = (std::max(0, seen_[layer] - c_.n_sink)) / 64 * 64;
    for (size_t g = 0; g < rows->keys.size() && n > sealed_[layer]; ++g) {
      for (Matrix* side : {&rows->keys[g], &rows->values[g]}) {
        const size_t index = 2 * g + (side == &rows->values[g] ? 1 : 0);
        if (rotations_[layer].size() <= index) {
          const Matrix run(side->begin() + c_.n_sink, side->begin() + c_.n_sink + n);
          rotations_[layer].push_back(reference::DecomposeStacked(run).right);
        }
        for (int t = sealed_[layer]; t < n; ++t) {
          std::vector<double>& row = (*side)[c_.n_sink + t];
          std::vector<double> projected(row.size(), 0.0);
          for (int r = 0; r < c_.rank; ++r) {
            const std::vector<double>& direction = rotations_[layer][index][r];
            double dot = 0;
            for (size_t i = 0; i < row.size(); ++i) dot += row[i] * direction[i];
            for (size_t i = 0; i < row.size(); ++i) projected[i] += dot * direction[i];
          }
          row = projected;
        }
      }
    }
    sealed_[layer] = std::max(sealed_[layer], n);
  }

 private:
  Case c_;
  std::vector<int> seen_, sealed_;
  std::vector<std::vector<Matrix>> rotations_;  // [layer][head and side]
};

int64_t Round64(int64_t n) { return (n + 63) / 64 * 64; }

// Of one sequence: heads of `n_heads` in all, `element` bytes a number.
int64_t LiteralBytes(const Case& c, int n_tokens, int n_heads, int64_t element) {
  const int64_t n_blocks = (std::max(0, n_tokens - c.n_sink) + 63) / 64;
  const int64_t plain = 64 * 2 * kHeadDim * element;
  int64_t of_head = Round64(2 * c.n_sink * kHeadDim * element) + Round64(8 * n_blocks);
  int64_t n_sealed = 0, n_runs = 0;
  if (n_tokens >= c.n_prompt) {
    const int64_t of_prompt = std::max(0, c.n_prompt - c.n_sink) / 64;
    n_sealed = std::max(0, n_tokens - c.n_sink) / 64;
    n_runs = (of_prompt > 0 ? 1 : 0) + n_sealed - of_prompt;
  }
  of_head += (n_blocks - n_sealed) * plain + n_sealed * 64 * 2 * c.rank * element;
  if (n_runs > 0) of_head += 2 * kHeadDim * c.rank * element + Round64(32 * n_runs);
  return n_heads * of_head;
}

class OnlineSvdTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    directory_ = testing::FreshDirectory("online_svd");
    reference_ = testing::WriteRandomModel({.n_heads = 4, .n_kv_heads = 2, .head_dim = kHeadDim},
                                           directory_, 31);
    std::mt19937_64 random(7);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Model> Load(Isa isa, DType type, const char* text) {
    const auto spec = Spec::Parse(text);
    EXPECT_TRUE(spec.ok()) << spec.status();
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights =
        ModelWeights::Load(*LoadModelConfig(directory_), type, MakeFileSource(*std::move(reader)),
                           MakeMachine(&threads_, isa));
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), PartsOf(*spec));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Logits after every token, in chunks of at most `chunk`.
  Matrix Logits(Model* model, int chunk, bool is_plain = false) {
    SequenceCache cache(&model->layout(), &pool_);
    cache.set_n_prompt(GetParam().n_prompt);
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    const int64_t element = SizeOf(model->layout().shapes[0].row_type);
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
      EXPECT_EQ(cache.bytes().total(),
                SequenceBytes(model->layout(), cache.n_tokens(), n, GetParam().n_prompt));
      EXPECT_EQ(cache.bytes().total(), pool_.usage().used_bytes);
      if (is_plain) continue;
      EXPECT_EQ(cache.bytes().total(),
                LiteralBytes(GetParam(), cache.n_tokens(),
                             reference_.n_layers * reference_.n_kv_heads, element));
    }
    return logits;
  }

  static std::string directory_;
  static testing::ReferenceModel reference_;
  static std::vector<int> ids_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};
std::string OnlineSvdTest::directory_;
testing::ReferenceModel OnlineSvdTest::reference_;
std::vector<int> OnlineSvdTest::ids_;

TEST_P(OnlineSvdTest, MatchesLiteralProjections) {
  const Case& c = GetParam();
  LiteralSvd literal(c, reference_.n_layers);
  const Matrix expected = testing::ReferenceLogits(
      reference_, ids_, {}, c.n_sink,
      [&](int layer, testing::ReferenceRows* rows) { literal(layer, rows); });
  const double loss = RootMeanSquare(expected, testing::ReferenceLogits(reference_, ids_));
  if (c.rank < kHeadDim) {
    ASSERT_GT(loss, 1e-3);
  }
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(IsaName(isa));
    std::unique_ptr<Model> f32 = Load(isa, DType::kF32, c.spec);
    const Matrix whole = Logits(f32.get(), 512);
    EXPECT_LT(RootMeanSquare(whole, expected), 0.002 * loss + 1e-4);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 37), whole), 1e-4);
    std::unique_ptr<Model> bf16 = Load(isa, DType::kBf16, c.spec);
    EXPECT_LT(RootMeanSquare(Logits(bf16.get(), 64), expected), 0.3 * loss + 2e-2);
  }
}

TEST_P(OnlineSvdTest, AtRateZeroIsTheUncompressedModel) {
  std::unique_ptr<Model> full = Load(AvailableIsas().back(), DType::kF32, "svd-online(rate=0)");
  std::unique_ptr<Model> none = Load(AvailableIsas().back(), DType::kF32, "none");
  EXPECT_LT(RootMeanSquare(Logits(full.get(), 100, true), Logits(none.get(), 100, true)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Specs, OnlineSvdTest, ::testing::ValuesIn(kCases), [](const auto& test) {
  return fmt::format("prompt_{}_rank_{}", test.param.n_prompt, test.param.rank);
});

}  // namespace
}  // namespace kvlathe
