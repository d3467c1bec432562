// The forward with entries dropped against the literal decoder with literal retention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "model/model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"
#include "reference_retention.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceQuantizer;
using testing::ReferenceRetention;
using testing::RootMeanSquare;

constexpr int kTokens = 260, kPrompt = 170, kRun = 64;

struct Case {
  const char* spec;
  ReferenceRetention literal;
  bool has_latents = false;  // random ones, in place of palu's
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec; }

const Case kCases[] = {
    {"window(size=50,sink=4)",
     {.name = "window", .budget = 54, .n_recent = 50, .run = kRun, .n_sink = 4}},
    {"h2o(keep=0.4,recent=0.5,sink=4)",
     {.name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4}},
    {"h2o(budget=40,recent=0.25,sink=0)",
     {.name = "h2o", .budget = 40, .recent = 0.25, .run = kRun}},
    {"h2o(keep=0.3,budget=prompt,recent=0.5,prune=prompt,sink=2)",
     {.name = "h2o", .keep = 0.3, .of_prompt = true, .recent = 0.5, .n_sink = 2}},
    {"tova(budget=48,sink=0)", {.name = "tova", .budget = 48, .shared = true, .run = kRun}},
    {"tova(keep=0.5,heads=own,sink=4)", {.name = "tova", .keep = 0.5, .run = kRun, .n_sink = 4}},
    {"keyformer(keep=0.4,recent=0.3,sink=4)",
     {.name = "keyformer", .keep = 0.4, .recent = 0.3, .tau_end = 2, .run = kRun, .n_sink = 4}},
    {"keyformer(keep=0.5,budget=prompt,interval=8,tau_init=0.5,tau_end=1.5,prune=prompt,sink=0)",
     {.name = "keyformer",
      .keep = 0.5,
      .of_prompt = true,
      .recent = 0.3,
      .interval = 8,
      .tau_init = 0.5,
      .tau_end = 1.5}},
    {"snapkv(budget=60,window=16,kernel=5,sink=4)",
     {.name = "snapkv",
      .budget = 60,
      .n_recent = 16,
      .kernel = 5,
      .prompt_only = true,
      .n_sink = 4}},
    {"palu+keyformer(keep=0.4,recent=0.3,sink=4)",
     {.name = "keyformer", .keep = 0.4, .recent = 0.3, .tau_end = 2, .run = kRun, .n_sink = 4},
     true},
    {"palu+snapkv(budget=60,window=16,kernel=5,sink=0)",
     {.name = "snapkv", .budget = 60, .n_recent = 16, .kernel = 5, .prompt_only = true},
     true},
};

class RetainedModelTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    directory_ = testing::FreshDirectory("retained_model");
    reference_ =
        testing::WriteRandomModel({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32}, directory_, 31);
    latents_ = testing::RandomLatentBases(reference_, 12);
    ids_.clear();  // both suites of this class come here
    std::mt19937_64 random(8);
    for (int i = 0; i < kTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(random() % reference_.vocab));
    }
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text) {
    const auto spec = Spec::Parse(spec_text);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const std::optional<SealPlan> seal = SealPlanOf(*spec);
    std::optional<RetentionPlan> plan = RetentionPlanOf(*spec);
    if (plan.has_value()) plan->run = kRun;
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory_), type,
                                      MakeFileSource(*std::move(reader)), &threads_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const ModelBasis basis = testing::ToModelBasis(reference_, latents_);
    auto model = Model::Create(*std::move(weights), spec->basis() == nullptr ? nullptr : &basis,
                               spec->n_sink(), &threads_, isa, seal.has_value() ? &*seal : nullptr,
                               plan.has_value() ? &*plan : nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  std::unique_ptr<SequenceCache> NewCache(const Model& model) {
    auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
    cache->set_n_prompt(kPrompt, kTokens - kPrompt);
    return cache;
  }

  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, Matrix* logits) {
    while (cache->n_tokens() < n_tokens) {
      const int begin = cache->n_tokens();
      const int n =
          static_cast<int>(std::min<int64_t>({chunk, n_tokens - begin, cache->max_step()}));
      const Status extended = cache->Extend(n);
      ASSERT_TRUE(extended.ok()) << extended;
      const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      ASSERT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits->emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      ASSERT_EQ(cache->bytes().total(),
                SequenceBytes(model->layout(), cache->n_tokens(), n, kPrompt));
      ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
    }
  }

  static std::vector<int> Positions(const SequenceCache& cache, int layer_idx, int kv_head_idx) {
    std::vector<int> positions;
    for (int e = 0; e < cache.n_entries(layer_idx, kv_head_idx); ++e) {
      positions.push_back(cache.entries(layer_idx, kv_head_idx).position(e));
    }
    std::ranges::sort(positions);
    return positions;
  }

  static double LargestDifference(const Matrix& a, const Matrix& b) {
    double largest = 0;
    EXPECT_EQ(a.size(), b.size());
    for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
      for (size_t i = 0; i < a[t].size(); ++i) {
        largest = std::max(largest, std::abs(a[t][i] - b[t][i]));
      }
    }
    return largest;
  }

  static std::string directory_;
  static testing::ReferenceModel reference_;
  static std::vector<testing::ReferenceBasis> latents_;
  static std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  BlockPool pool_{int64_t{64} << 20};
};
std::string RetainedModelTest::directory_;
testing::ReferenceModel RetainedModelTest::reference_;
std::vector<testing::ReferenceBasis> RetainedModelTest::latents_;
std::vector<int32_t> RetainedModelTest::ids_;

TEST_P(RetainedModelTest, KeepsWhatTheLiteralMethodKeeps) {
  ReferenceRetention literal = GetParam().literal;
  literal.n_prompt = kPrompt;
  literal.n_generated = kTokens - kPrompt;
  testing::RetainLiterally retain(literal, reference_.n_layers, reference_.n_kv_heads);
  const std::vector<int> ids(ids_.begin(), ids_.end());
  std::vector<testing::ReferenceBasis> bases;
  if (GetParam().has_latents) bases = latents_;
  const Matrix want = testing::ReferenceLogits(
      reference_, ids, bases, literal.n_sink,
      [&](int layer, testing::ReferenceRows* rows) { retain(layer, rows); });
  const Matrix plain = testing::ReferenceLogits(reference_, ids, bases, literal.n_sink);
  const double loss = LargestDifference(want, plain);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, GetParam().spec);
    for (const int chunk : {512, 1, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      Matrix logits;
      Read(model.get(), cache.get(), kTokens, chunk, &logits);
      if (HasFatalFailure()) return;
      // Where nothing is dropped any more, positions are gone too, and the logits tell.
      for (int l = 0; l < reference_.n_layers && !cache->entries(l, 0).empty(); ++l) {
        for (int g = 0; g < reference_.n_kv_heads; ++g) {
          EXPECT_EQ(Positions(*cache, l, g), retain.Positions(l, g))
              << "layer " << l << " head " << g;
        }
      }
      EXPECT_LT(LargestDifference(logits, want), 0.002 * loss);
    }
  }
}

TEST_P(RetainedModelTest, BatchesKeepTheSame) {
  std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kF32, GetParam().spec);
  Matrix alone;
  const std::unique_ptr<SequenceCache> single = NewCache(*model);
  Read(model.get(), single.get(), kTokens, 512, &alone);
  if (HasFatalFailure()) return;
  // Three of the same tokens that start one after the other; each step takes what each can take.
  std::vector<std::unique_ptr<SequenceCache>> caches;
  for (int i = 0; i < 3; ++i) caches.push_back(NewCache(*model));
  Matrix last(caches.size());
  for (int round = 0; last.back().empty() || caches.back()->n_tokens() < kTokens; ++round) {
    std::vector<SequenceStep> steps;
    std::vector<size_t> of;
    for (size_t i = 0; i < caches.size(); ++i) {
      const int begin = caches[i]->n_tokens();
      if (round < static_cast<int>(7 * i) || begin == kTokens) continue;
      const int n = static_cast<int>(std::min<int64_t>(
          {20 + 9 * static_cast<int64_t>(i), kTokens - begin, caches[i]->max_step()}));
      ASSERT_TRUE(caches[i]->Extend(n).ok());
      steps.push_back(
          {caches[i].get(), std::span(ids_).subspan(begin, n), SequenceStep::Logits::kLast});
      of.push_back(i);
    }
    if (steps.empty()) continue;
    ASSERT_TRUE(model->Forward(steps).ok());
    for (size_t s = 0; s < of.size(); ++s) {
      last[of[s]].assign(model->logits(s).begin(), model->logits(s).end());
    }
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    EXPECT_LT(LargestDifference({last[i]}, {alone.back()}), 1e-3) << i;
    for (int l = 0; l < reference_.n_layers && !single->entries(l, 0).empty(); ++l) {
      for (int g = 0; g < reference_.n_kv_heads; ++g) {
        EXPECT_EQ(Positions(*caches[i], l, g), Positions(*single, l, g)) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, RetainedModelTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) {
                           std::string name = test.param.spec;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

struct SealedCase {
  const char* spec;
  ReferenceRetention retention;
  ReferenceQuantizer quantizer;
};

// Entries go while the prompt is read and where it ends, what stays then is sealed: as a quantiser
// of the rest would do.
TEST_F(RetainedModelTest, SealsWhatStays) {
  const SealedCase cases[] = {
      {"snapkv(budget=100,window=16,kernel=5,sink=4)+kivi(bits=2,group=32)",
       {.name = "snapkv", .budget = 100, .n_recent = 16, .kernel = 5, .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .n_sink = 4}},
      {"h2o(keep=0.8,sink=0)+kcvt(bits=2)+sparse(share=0.1)",
       {.name = "h2o", .keep = 0.8, .recent = 0.5, .run = kRun},
       {.name = "kcvt", .bits = 2, .sparse_share = 0.1}},
      {"tova(budget=80,sink=2)+token(bits=3,group=16)",
       {.name = "tova", .budget = 80, .shared = true, .run = kRun, .n_sink = 2},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 2}},
      {"keyformer(keep=0.5,prune=prompt,sink=0)+int8",
       {.name = "keyformer", .keep = 0.5, .recent = 0.3, .tau_end = 2},
       {.name = "int8", .bits = 8}}};
  const std::vector<int> ids(ids_.begin(), ids_.end());
  for (SealedCase c : cases) {
    SCOPED_TRACE(c.spec);
    c.retention.prompt_only = true;
    c.retention.n_prompt = kPrompt;
    const auto read = [&](const ReferenceQuantizer* quantizer) {
      testing::RetainLiterally retain(c.retention, reference_.n_layers, reference_.n_kv_heads);
      std::vector<int> n_seen(reference_.n_layers);
      return testing::ReferenceLogits(
          reference_, ids, {}, 0, [&](int layer, testing::ReferenceRows* rows) {
            retain(layer, rows);
            if (++n_seen[layer] < kPrompt || quantizer == nullptr) return;
            ReferenceQuantizer of_rest = *quantizer;
            of_rest.run = 0;
            of_rest.n_prompt = c.retention.n_sink +
                               static_cast<int>(retain.Positions(layer, 0).size()) -
                               (n_seen[layer] - kPrompt);
            testing::SealLiterally(of_rest, layer, rows);
          });
    };
    const Matrix want = read(&c.quantizer);
    const double loss = RootMeanSquare(want, read(nullptr));
    ASSERT_GT(loss, 1e-5);
    for (const Isa isa : AvailableIsas()) {
      std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
      for (const int chunk : {512, 1}) {
        const std::unique_ptr<SequenceCache> cache = NewCache(*model);
        Matrix logits;
        Read(model.get(), cache.get(), kTokens, chunk, &logits);
        if (HasFatalFailure()) return;
        EXPECT_LT(RootMeanSquare(logits, want), 0.05 * loss + 1e-5) << IsaName(isa);
      }
    }
  }
}

// A budget for every position drops nothing: the same bits as without retention.
TEST_F(RetainedModelTest, ABudgetForAllChangesNothing) {
  for (const char* spec :
       {"h2o(keep=1,sink=0)", "tova(budget=1000,sink=0)", "keyformer(keep=1,sink=0)",
        "snapkv(budget=1000,sink=0)", "window(size=1000,sink=0)"}) {
    std::unique_ptr<Model> kept = Load(AvailableIsas().back(), DType::kBf16, spec);
    std::unique_ptr<Model> none = Load(AvailableIsas().back(), DType::kBf16, "none");
    kept->set_deterministic(true);
    none->set_deterministic(true);
    const std::unique_ptr<SequenceCache> cache = NewCache(*kept);
    Matrix with, without;
    Read(kept.get(), cache.get(), kTokens, 64, &with);
    cache->Clear();
    const std::unique_ptr<SequenceCache> plain = NewCache(*none);
    Read(none.get(), plain.get(), kTokens, 64, &without);
    EXPECT_EQ(with, without) << spec;
  }
}

// Steps of the prompt make no difference to any bit, nor does what else is there.
TEST_F(RetainedModelTest, DeterministicModelsKeepTheSameBits) {
  for (const char* spec :
       {"h2o(keep=0.4,sink=4)", "keyformer(keep=0.4,sink=4)", "palu+h2o(keep=0.4,sink=4)"}) {
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    model->set_deterministic(true);
    Matrix whole, cut;
    const std::unique_ptr<SequenceCache> first = NewCache(*model);
    Read(model.get(), first.get(), kTokens, 512, &whole);
    first->Clear();
    const std::unique_ptr<SequenceCache> second = NewCache(*model);
    Read(model.get(), second.get(), kTokens, 11, &cut);
    EXPECT_EQ(whole, cut) << spec;
  }
}

// What is dropped is free for others.
TEST_F(RetainedModelTest, FreedBytesAdmitAnotherSequence) {
  std::unique_ptr<Model> model =
      Load(AvailableIsas().back(), DType::kBf16, "h2o(budget=64,sink=0)");
  const int64_t full = SequenceBytes(CacheLayout{model->layout()}, kPrompt, 1, kPrompt);
  BlockPool pool(PeakSequenceBytes(model->layout(), kPrompt, 512, kPrompt) + full);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  const auto read = [&] {
    caches.push_back(std::make_unique<SequenceCache>(&model->layout(), &pool));
    caches.back()->set_n_prompt(kPrompt);
    while (caches.back()->n_tokens() < kPrompt) {
      const int begin = caches.back()->n_tokens();
      const int n = static_cast<int>(std::min<int64_t>(kPrompt - begin, caches.back()->max_step()));
      KVL_RETURN_IF_ERROR(caches.back()->Extend(n));
      const SequenceStep step{caches.back().get(), std::span(ids_).subspan(begin, n)};
      KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
    }
    return OkStatus();
  };
  EXPECT_TRUE(read().ok());
  const int64_t used = pool.usage().used_bytes;
  EXPECT_EQ(used, full);
  EXPECT_TRUE(read().ok());  // in what the first gave back
  EXPECT_EQ(pool.usage().used_bytes, 2 * full);
  EXPECT_EQ(read().code(), StatusCode::kResourceExhausted);
  caches.erase(caches.begin());
  caches.pop_back();
  EXPECT_TRUE(read().ok());
}

}  // namespace
}  // namespace kvlathe
