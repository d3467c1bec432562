// The forward on sealed blocks against the literal decoder with a literal quantiser.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/quantizer/method.h"
#include "model/model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceQuantizer;
using testing::RootMeanSquare;

constexpr int kTokens = 230, kPrompt = 150;

struct Case {
  const char* spec;
  ReferenceQuantizer literal;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec; }

const Case kCases[] = {
    {"kivi(bits=2,group=32,run=64,sink=4)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .n_sink = 4}},
    {"kivi(bits=4,group=64,run=prompt,sink=0)",
     {.name = "kivi", .bits = 4, .group = 64, .run = 0, .n_sink = 0}},
    {"kivi(bits=3,group=128,run=128,buffer=128,sink=0)",
     {.name = "kivi", .bits = 3, .group = 128, .run = 128, .buffer = 128, .n_sink = 0}},
    {"kivi(bits=8,group=64,run=64,sink=1)+sparse(share=0.04)",
     {.name = "kivi", .bits = 8, .group = 64, .run = 64, .n_sink = 1, .sparse_share = 0.04}},
    {"kcvt(bits=4,run=64,sink=4)", {.name = "kcvt", .bits = 4, .run = 64, .n_sink = 4}},
    {"kcvt(bits=2,run=128,sink=0)+sparse(share=0.1)",
     {.name = "kcvt", .bits = 2, .run = 128, .n_sink = 0, .sparse_share = 0.1}},
    {"token(bits=3,group=16,run=64,sink=4)",
     {.name = "token", .bits = 3, .group = 16, .run = 64, .n_sink = 4}},
    {"token(bits=4,group=32,run=64,sink=0)+sparse(share=0.08)",
     {.name = "token", .bits = 4, .group = 32, .run = 64, .n_sink = 0, .sparse_share = 0.08}},
    {"int8(run=64,sink=4)", {.name = "int8", .bits = 8, .run = 64, .n_sink = 4}},
    {"kivi(bits=4,run=64,buffer=128,sink=0)",
     {.name = "kivi", .bits = 4, .group = 32, .run = 64, .buffer = 128, .n_sink = 0}},
};

class QuantizedModelTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    directory_ = testing::FreshDirectory("quantized_model");
    reference_ =
        testing::WriteRandomModel({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32}, directory_, 31);
    std::mt19937_64 random(7);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
    plain_ = testing::ReferenceLogits(reference_, ids_);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Model> Load(Isa isa, DType type, const Spec& spec) {
    const std::optional<SealPlan> seal = SealPlanOf(spec);
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory_), type,
                                      MakeFileSource(*std::move(reader)), &threads_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = Model::Create(*std::move(weights), nullptr, spec.n_sink(), &threads_, isa, &*seal);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Logits after every token; chunks of at most `chunk` and of one run each, single tokens behind
  // the prompt when `decode` is set.
  Matrix Logits(Model* model, int chunk, bool decode) {
    SequenceCache cache(&model->layout(), &pool_);
    cache.set_n_prompt(kPrompt);
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    Matrix logits;
    while (cache.n_tokens() < kTokens) {
      const int begin = cache.n_tokens();
      const int most = decode && begin >= kPrompt ? 1 : chunk;
      const int n = static_cast<int>(std::min<int64_t>({most, kTokens - begin, cache.max_step()}));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span(tokens).subspan(begin, n),
                              SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      EXPECT_EQ(cache.bytes().total(),
                SequenceBytes(model->layout(), cache.n_tokens(), n, kPrompt));
      EXPECT_EQ(cache.bytes().total(), pool_.usage().used_bytes);
    }
    return logits;
  }

  static std::string directory_;
  static testing::ReferenceModel reference_;
  static std::vector<int> ids_;
  static Matrix plain_;
  ThreadPool threads_{2};
  BlockPool pool_{int64_t{64} << 20};
};
std::string QuantizedModelTest::directory_;
testing::ReferenceModel QuantizedModelTest::reference_;
std::vector<int> QuantizedModelTest::ids_;
Matrix QuantizedModelTest::plain_;

TEST_P(QuantizedModelTest, MatchesTheLiteralQuantiser) {
  ReferenceQuantizer literal = GetParam().literal;
  literal.n_prompt = kPrompt;
  const Matrix expected = testing::ReferenceLogits(
      reference_, ids_, {}, literal.n_sink,
      [&](int, testing::ReferenceRows* rows) { testing::SealLiterally(literal, rows); });
  // What the quantiser loses, against which errors of the computation are judged. A row in F32 and
  // in double may round to neighbouring codes now and then, so equality is not to be had.
  const double loss = RootMeanSquare(expected, plain_);
  ASSERT_GT(loss, 1e-6);
  const auto spec = Spec::Parse(GetParam().spec);
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(IsaName(isa));
    std::unique_ptr<Model> f32 = Load(isa, DType::kF32, *spec);
    const Matrix whole = Logits(f32.get(), 512, false);
    EXPECT_LT(RootMeanSquare(whole, expected), 0.05 * loss + 1e-4);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 37, true), whole), 0.02 * loss + 1e-5);
    // A row that is rounded to Bf16 first may take the neighbouring code: an error of the size of
    // the quantiser's own in a few entries of a hundred.
    std::unique_ptr<Model> bf16 = Load(isa, DType::kBf16, *spec);
    EXPECT_LT(RootMeanSquare(Logits(bf16.get(), 64, true), expected), 0.7 * loss + 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, QuantizedModelTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) {
                           std::string name = test.param.spec;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace kvlathe
