// The forward with entries dropped against the literal decoder with literal retention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/cpu_features.h"
#include "base/random.h"
#include "kernels/cpu/seal.h"
#include "kv/blocks/block_pool.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "kv/retention/reopen.h"
#include "kv/seal_schedule.h"
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
constexpr int kManyTokens = 480;  // sealed entries are dropped several times

struct Case {
  const char* spec;
  ReferenceRetention literal;
  bool has_latents = false;  // random ones, in place of palu's; shared as the spec says
  // Random maps in place of fdc's.
  bool has_maps() const { return std::string_view(spec).starts_with("fdc"); }
};

bool ReadsWholeKeys(std::string_view spec) {
  return spec.find("score=exact") != std::string_view::npos;
}

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
    {"palu(group=2)+window(size=50,sink=4)",
     {.name = "window", .budget = 54, .n_recent = 50, .run = kRun, .n_sink = 4},
     true},
    {"palu(group=2)+tova(budget=48,sink=0)",
     {.name = "tova", .budget = 48, .shared = true, .run = kRun},
     true},
    {"fdc+h2o(keep=0.4,recent=0.5,sink=4)",
     {.name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4}},
    {"fdc+h2o(keep=0.4,recent=0.5,score=exact,sink=4)",
     {.name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4}},
    {"fdc+h2o(keep=0.3,budget=prompt,recent=0.5,prune=prompt,score=exact,sink=0)",
     {.name = "h2o", .keep = 0.3, .of_prompt = true, .recent = 0.5}},
    {"fdc+tova(budget=48,score=exact,sink=2)",
     {.name = "tova", .budget = 48, .shared = true, .run = kRun, .n_sink = 2}},
    {"fdc+keyformer(keep=0.4,recent=0.3,score=exact,sink=4)",
     {.name = "keyformer", .keep = 0.4, .recent = 0.3, .tau_end = 2, .run = kRun, .n_sink = 4}},
    {"fdc+snapkv(budget=60,window=16,kernel=5,score=exact,sink=4)",
     {.name = "snapkv",
      .budget = 60,
      .n_recent = 16,
      .kernel = 5,
      .prompt_only = true,
      .n_sink = 4}},
    {"fdc+snapkv(budget=500,window=16,score=exact,sink=0)",
     {.name = "snapkv", .budget = 500, .n_recent = 16, .kernel = 5, .prompt_only = true}},
};

class RetainedModelTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    directory_ = testing::FreshDirectory("retained_model");
    reference_ =
        testing::WriteRandomModel({.n_heads = 4, .n_kv_heads = 2, .head_dim = 32}, directory_, 31);
    maps_ = testing::RandomBases(reference_, 12);
    latents_ = testing::RandomLatentBases(reference_, 12);
    shared_latents_ = testing::RandomLatentBases(reference_, 12, reference_.n_kv_heads);
    ids_.clear();  // both suites of this class come here
    std::mt19937_64 random(8);
    for (int i = 0; i < kManyTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(random() % reference_.vocab));
    }
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(directory_); }

  // `slack`: of budgets behind the prompt, where it is not the spec's.
  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text, double slack = 0) {
    const auto spec = Spec::Parse(spec_text);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const std::optional<SealPlan> seal = SealPlanOf(*spec);
    std::optional<RetentionPlan> plan = RetentionPlanOf(*spec);
    if (plan.has_value()) plan->run = kRun;
    if (slack > 0) plan->slack = slack;
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights = ModelWeights::Load(*LoadModelConfig(directory_), type,
                                      MakeFileSource(*std::move(reader)), &threads_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const ModelBasis basis = testing::ToModelBasis(reference_, BasesOf(spec_text));
    auto model = Model::Create(*std::move(weights), spec->basis() == nullptr ? nullptr : &basis,
                               spec->n_sink(), &threads_, isa, seal.has_value() ? &*seal : nullptr,
                               plan.has_value() ? &*plan : nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  std::unique_ptr<SequenceCache> NewCache(const Model& model, int n_tokens = kTokens) {
    auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
    cache->set_n_prompt(kPrompt, n_tokens - kPrompt);
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

  // The next n tokens.
  void Step(Model* model, SequenceCache* cache, int n) {
    const int begin = cache->n_tokens();
    ASSERT_TRUE(cache->Extend(n).ok());
    const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kLast};
    const Status status = model->Forward({&step, 1});
    ASSERT_TRUE(status.ok()) << status;
  }

  // Entries of a head that only the second cache has.
  static std::vector<int> DroppedBy(const SequenceCache& cache, const SequenceCache& all,
                                    int layer_idx, int kv_head_idx) {
    const std::vector<int> kept = Positions(cache, layer_idx, kv_head_idx);
    std::vector<int> dropped;
    for (int e = 0; e < all.n_entries(layer_idx, kv_head_idx); ++e) {
      const int position = all.entries(layer_idx, kv_head_idx).position(e);
      if (!std::ranges::binary_search(kept, position)) dropped.push_back(e);
    }
    return dropped;
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
  static const std::vector<testing::ReferenceBasis>& BasesOf(std::string_view spec) {
    if (spec.starts_with("fdc")) return maps_;
    return spec.starts_with("palu(group=2)") ? shared_latents_ : latents_;
  }

  static std::vector<testing::ReferenceBasis> maps_, latents_, shared_latents_;
  static std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  BlockPool pool_{int64_t{64} << 20};
};
std::string RetainedModelTest::directory_;
testing::ReferenceModel RetainedModelTest::reference_;
std::vector<testing::ReferenceBasis> RetainedModelTest::maps_;
std::vector<testing::ReferenceBasis> RetainedModelTest::latents_;
std::vector<testing::ReferenceBasis> RetainedModelTest::shared_latents_;
std::vector<int32_t> RetainedModelTest::ids_;

TEST_P(RetainedModelTest, KeepsWhatTheLiteralMethodKeeps) {
  ReferenceRetention literal = GetParam().literal;
  literal.n_prompt = kPrompt;
  literal.n_generated = kTokens - kPrompt;
  testing::RetainLiterally retain(literal, reference_.n_layers, reference_.n_kv_heads);
  const std::vector<int> ids(ids_.begin(), ids_.begin() + kTokens);
  std::vector<testing::ReferenceBasis> bases;
  if (GetParam().has_latents || GetParam().has_maps()) bases = BasesOf(GetParam().spec);
  const int n_whole_keys = ReadsWholeKeys(GetParam().spec) ? kPrompt : 0;
  std::vector<int> n_seen(reference_.n_layers);
  const Matrix want = testing::ReferenceLogits(
      reference_, ids, bases, literal.n_sink,
      [&](int layer, testing::ReferenceRows* rows) {
        retain(layer, rows);
        if (++n_seen[layer] != n_whole_keys) return;
        testing::MapKeys(reference_, layer, bases, literal.n_sink, rows);
      },
      nullptr, n_whole_keys);
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
  bool has_latents = false;
};

// Entries go while the prompt is read, where it ends, and wherever they have outgrown their budget
// after that. What stays then is sealed, what had been sealed already from what its codes stand
// for: as a quantiser of the rest would do.
TEST_F(RetainedModelTest, SealsWhatStays) {
  constexpr double kSlack = 0.25;
  const SealedCase cases[] = {
      {"snapkv(budget=100,window=16,kernel=5,sink=4)+kivi(bits=2,group=32)",
       {.name = "snapkv",
        .budget = 100,
        .n_recent = 16,
        .kernel = 5,
        .prompt_only = true,
        .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .n_sink = 4}},
      {"h2o(keep=0.5,sink=0)+kcvt(bits=2)+sparse(share=0.1)",
       {.name = "h2o", .keep = 0.5, .recent = 0.5, .slack = kSlack, .run = kRun},
       {.name = "kcvt", .bits = 2, .sparse_share = 0.1}},
      {"h2o(keep=0.4,budget=prompt,recent=0.25,sink=4)+kivi(bits=2,group=32,buffer=128)",
       {.name = "h2o",
        .keep = 0.4,
        .of_prompt = true,
        .recent = 0.25,
        .slack = kSlack,
        .run = kRun,
        .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .buffer = 128, .n_sink = 4}},
      {"tova(budget=80,sink=2)+token(bits=3,group=16)",
       {.name = "tova", .budget = 80, .shared = true, .slack = kSlack, .run = kRun, .n_sink = 2},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 2}},
      {"tova(budget=40,heads=own,sink=0)+q8_0",
       {.name = "tova", .budget = 40, .slack = kSlack, .run = kRun},
       {.name = "q8_0", .bits = 8}},
      {"keyformer(keep=0.3,prune=prompt,sink=0)+int8",
       {.name = "keyformer", .keep = 0.3, .recent = 0.3, .slack = kSlack, .tau_end = 2},
       {.name = "int8", .bits = 8}},
      {"h2o(keep=0.8,sink=0)+kcvt(bits=4)",
       {.name = "h2o", .keep = 0.8, .recent = 0.5, .slack = kSlack, .run = kRun},
       {.name = "kcvt", .bits = 4}},
      {"palu+h2o(keep=0.4,sink=4)+token(bits=3,group=16)",
       {.name = "h2o", .keep = 0.4, .recent = 0.5, .slack = kSlack, .run = kRun, .n_sink = 4},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 4},
       true},
      {"palu+snapkv(budget=90,window=16,kernel=5,sink=0)+kivi(bits=3,group=32)",
       {.name = "snapkv", .budget = 90, .n_recent = 16, .kernel = 5, .prompt_only = true},
       {.name = "kivi", .bits = 3, .group = 32},
       true},
      {"palu(group=2)+tova(budget=80,sink=2)+token(bits=3,group=16)",
       {.name = "tova", .budget = 80, .shared = true, .slack = kSlack, .run = kRun, .n_sink = 2},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 2},
       true},
      {"fdc+h2o(keep=0.4,score=exact,sink=4)+token(bits=3,group=16)",
       {.name = "h2o", .keep = 0.4, .recent = 0.5, .slack = kSlack, .run = kRun, .n_sink = 4},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 4}},
      {"fdc+snapkv(budget=90,window=16,kernel=5,score=exact,sink=0)+kivi(bits=3,group=32)",
       {.name = "snapkv", .budget = 90, .n_recent = 16, .kernel = 5, .prompt_only = true},
       {.name = "kivi", .bits = 3, .group = 32}}};
  const std::vector<int> ids(ids_.begin(), ids_.end());
  for (SealedCase c : cases) {
    SCOPED_TRACE(c.spec);
    c.retention.n_prompt = kPrompt;
    c.retention.n_generated = kManyTokens - kPrompt;
    const int n_whole_keys = ReadsWholeKeys(c.spec) ? kPrompt : 0;
    const bool has_basis = c.has_latents || n_whole_keys > 0;
    const auto bases = has_basis ? BasesOf(c.spec) : std::vector<testing::ReferenceBasis>();
    testing::RetainLiterally retain(c.retention, reference_.n_layers, reference_.n_kv_heads);
    const auto read = [&](const ReferenceQuantizer* quantizer) {
      retain = testing::RetainLiterally(c.retention, reference_.n_layers, reference_.n_kv_heads);
      std::vector<int> n_seen(reference_.n_layers), n_entries(reference_.n_layers);
      std::vector<int> n_at_start(reference_.n_layers);  // entries when some were dropped last
      return testing::ReferenceLogits(
          reference_, ids, bases, c.retention.n_sink,
          [&](int layer, testing::ReferenceRows* rows) {
            retain(layer, rows);
            const int n_before = n_entries[layer];
            n_entries[layer] = static_cast<int>(retain.Positions(layer, 0).size());
            if (++n_seen[layer] == n_whole_keys) {
              testing::MapKeys(reference_, layer, bases, c.retention.n_sink, rows);
            }
            if (n_seen[layer] < kPrompt || quantizer == nullptr) return;
            const bool has_dropped = n_entries[layer] <= n_before;
            if (n_seen[layer] == kPrompt || has_dropped) n_at_start[layer] = n_entries[layer];
            ReferenceQuantizer of_rest = *quantizer;
            of_rest.run = 0;
            of_rest.n_prompt = c.retention.n_sink + n_at_start[layer];
            testing::SealLiterally(of_rest, layer, rows);
          },
          nullptr, n_whole_keys);
    };
    const Matrix unsealed = read(nullptr);
    const Matrix want = read(&c.quantizer);
    const double loss = RootMeanSquare(want, unsealed);
    ASSERT_GT(loss, 1e-5);
    for (const Isa isa : AvailableIsas()) {
      std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
      for (const int chunk : {512, 1}) {
        SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
        const std::unique_ptr<SequenceCache> cache = NewCache(*model, kManyTokens);
        Matrix logits;
        Read(model.get(), cache.get(), kManyTokens, chunk, &logits);
        if (HasFatalFailure()) return;
        EXPECT_LT(RootMeanSquare(logits, want), 0.05 * loss + 1e-5);
        for (int l = 0; l < reference_.n_layers && !cache->entries(l, 0).empty(); ++l) {
          for (int g = 0; g < reference_.n_kv_heads; ++g) {
            EXPECT_EQ(Positions(*cache, l, g), retain.Positions(l, g)) << l << ' ' << g;
          }
        }
      }
    }
  }
}

// The bytes of a sealed run of every head of a layer.
std::vector<std::vector<std::byte>> BytesOfRun(const SequenceCache& cache,
                                               const CacheLayout& layout, int layer_idx) {
  std::vector<std::vector<std::byte>> objects;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    const PackedRun& run = cache.runs(layer_idx, g).front();
    const PackedShape shape = PackedShapeOf(
        layout, layer_idx, g, {run.first_block, run.n_blocks, run.is_prompt, run.is_repaired});
    const auto add = [&](const std::byte* object, int64_t n_bytes) {
      objects.emplace_back(object, object + n_bytes);
    };
    for (int b = 0; b < run.n_blocks; ++b) {
      add(cache.blocks(layer_idx, g)[b], PackedBlockBytes(shape));
    }
    add(run.record, RunRecordBytes(shape));
    if (g == 0) add(run.layer_record, LayerRecordBytes(shape));
  }
  return objects;
}

// What stays where entries are dropped is sealed as if it had been all: the objects are those that
// GEAR makes of the rows of the other entries.
TEST_F(RetainedModelTest, SealsAgainAsIfNothingElseHadBeenThere) {
  constexpr double kNeverCut = 100;
  for (const char* spec :
       {"h2o(keep=0.5,sink=4)+gear(bits=4)", "tova(budget=100,sink=0)+gear(bits=2)"}) {
    SCOPED_TRACE(spec);
    const Isa isa = AvailableIsas().back();
    std::unique_ptr<Model> model = Load(isa, DType::kBf16, spec);
    std::unique_ptr<Model> uncut = Load(isa, DType::kBf16, spec, kNeverCut);
    const CacheLayout& layout = model->layout();
    const std::unique_ptr<SequenceCache> cache = NewCache(*model), all = NewCache(*uncut);
    while (cache->reencoding().n_times == 0) {
      const int n = static_cast<int>(std::min<int64_t>(cache->max_step(), all->max_step()));
      ASSERT_LE(cache->n_tokens() + n, kManyTokens);
      Step(model.get(), cache.get(), n);
      Step(uncut.get(), all.get(), n);
    }
    Sealer sealer(layout.seal->format, DType::kBf16, layout.seal->power_loops, &threads_, isa);
    for (int l = 0; l < layout.n_layers; ++l) {
      const int n_kept = cache->n_entries(l, 0), n_blocks = n_kept / kBlockSize;
      // In their places: the objects of a run like the cache's, and the rows that it was made of.
      std::vector<std::vector<std::byte>> want = BytesOfRun(*cache, layout, l), rows;
      for (auto& object : want) std::ranges::fill(object, std::byte{0});
      std::vector<std::vector<const std::byte*>> plain(layout.n_kv_heads);
      std::vector<std::vector<std::byte*>> packed(layout.n_kv_heads), to(layout.n_kv_heads);
      std::vector<SealHead> heads;
      std::byte* layer_record = nullptr;
      for (int g = 0, object = 0; g < layout.n_kv_heads; ++g) {
        const BlockShape& shape = layout.shape(l, g);
        for (int b = 0; b <= n_blocks; ++b) {
          to[g].push_back(rows.emplace_back(BlockObjectBytes(shape)).data());
        }
        const PackedHead runs = {.format = layout.seal->format,
                                 .kv_head_idx = g,
                                 .n_kv_heads = layout.n_kv_heads,
                                 .layer_rank_v = 2 * shape.rank_v,
                                 .runs = all->runs(l, g).data(),
                                 .n_runs = static_cast<int>(all->runs(l, g).size())};
        const int n_all = all->n_entries(l, g);
        const std::vector<int> dropped = DroppedBy(*cache, *all, l, g);
        EXPECT_GT(CopyKept({shape, runs, all->blocks(l, g), n_all}, dropped, to[g]), 0);
        plain[g].assign(to[g].begin(), to[g].end());
        for (int b = 0; b < n_blocks; ++b) packed[g].push_back(want[object++].data());
        heads.push_back({.rank_k = shape.rank_k,
                         .rank_v = shape.rank_v,
                         .blocks = plain[g].data(),
                         .packed = packed[g].data(),
                         .record = want[object++].data()});
        if (g == 0) layer_record = want[object++].data();
      }
      const SealJob job = {.heads = heads,
                           .layer_record = layer_record,
                           .n_blocks = n_blocks,
                           .seed = MixBits(0) + l};
      ASSERT_TRUE(sealer.Run({&job, 1}).ok());
      EXPECT_TRUE(BytesOfRun(*cache, layout, l) == want) << "layer " << l;
    }
    // Of what is read and written again something is lost, but little.
    const Reencoding& changed = cache->reencoding();
    EXPECT_GT(changed.n_rows, 0);
    EXPECT_GT(changed.k_error, 0);
    EXPECT_LT(changed.k_error, 0.1 * changed.k_norm);
    EXPECT_LT(changed.v_error, 0.1 * changed.v_norm);
  }
}

// Codes of fixed numbers stand for what they stood for.
TEST_F(RetainedModelTest, SymmetricCodesLoseLittleWhenTheyAreReadAndWrittenAgain) {
  std::unique_ptr<Model> model =
      Load(AvailableIsas().back(), DType::kF32, "h2o(keep=0.2,sink=0)+int8");
  const std::unique_ptr<SequenceCache> cache = NewCache(*model, kManyTokens);
  Matrix logits;
  Read(model.get(), cache.get(), kManyTokens, 512, &logits);
  EXPECT_GT(cache->reencoding().n_times, 2);
  EXPECT_LT(cache->reencoding().k_error, 1e-9 * cache->reencoding().k_norm);
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

// Steps make no difference to any bit, nor does what else is there; with sealed entries dropped as
// well, whose steps may be longer than one token behind the prompt too.
TEST_F(RetainedModelTest, DeterministicModelsKeepTheSameBits) {
  for (const char* spec :
       {"h2o(keep=0.4,sink=4)", "keyformer(keep=0.4,sink=4)", "palu+h2o(keep=0.4,sink=4)",
        "fdc+h2o(keep=0.4,score=exact,sink=4)", "fdc+tova(budget=60,score=exact,sink=0)",
        "fdc+keyformer(keep=0.2,score=exact,sink=2)+kivi(bits=2)",
        "h2o(keep=0.2,sink=4)+gear(bits=4)", "keyformer(keep=0.2,sink=0)+kivi(bits=2)",
        "tova(budget=70,sink=0)+gear(bits=2)"}) {
    SCOPED_TRACE(spec);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    model->set_deterministic(true);
    Matrix whole, cut;
    const std::unique_ptr<SequenceCache> first = NewCache(*model);
    Read(model.get(), first.get(), kTokens, 512, &whole);
    EXPECT_EQ(first->reencoding().n_times > 0, model->layout().seal.has_value());
    first->Clear();
    const std::unique_ptr<SequenceCache> second = NewCache(*model);
    Read(model.get(), second.get(), kTokens, 11, &cut);
    EXPECT_EQ(whole, cut);
    if (HasFatalFailure()) return;
    second->Clear();
    // Two that open their runs in steps of their own, in one batch.
    const std::unique_ptr<SequenceCache> caches[] = {NewCache(*model), NewCache(*model)};
    Step(model.get(), caches[0].get(), 9);
    while (caches[1]->n_tokens() < kTokens) {
      std::vector<SequenceStep> steps;
      for (const auto& cache : caches) {
        const int begin = cache->n_tokens();
        const int n = static_cast<int>(std::min<int64_t>({40, kTokens - begin, cache->max_step()}));
        if (n == 0) continue;
        ASSERT_TRUE(cache->Extend(n).ok());
        steps.push_back({cache.get(), std::span(ids_).subspan(begin, n)});
      }
      ASSERT_TRUE(model->Forward(steps).ok());
    }
    const auto last = model->logits(model->n_logit_rows() - 1);
    EXPECT_EQ(std::vector<double>(last.begin(), last.end()), whole.back());
  }
}

// Where nothing is dropped, what is left of a prompt of whole keys is what is stored of one that is
// read with cut keys; of the first layer, which no attention has changed.
TEST_F(RetainedModelTest, WholeKeysBecomeTheRowsThatOthersStore) {
  for (const DType type : {DType::kBf16, DType::kF32}) {
    std::vector<std::vector<std::byte>> blocks[2];  // full ones, of both
    for (const bool is_exact : {false, true}) {
      const char* const spec = is_exact ? "fdc+h2o(keep=1,score=exact,sink=3)" : "fdc(sink=3)";
      std::unique_ptr<Model> model = Load(AvailableIsas().back(), type, spec);
      model->set_deterministic(true);
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      while (cache->n_tokens() < kPrompt) {
        Step(model.get(), cache.get(),
             static_cast<int>(std::min<int64_t>(cache->max_step(), kPrompt - cache->n_tokens())));
      }
      for (int g = 0; g < reference_.n_kv_heads; ++g) {
        for (int b = 0; b < (kPrompt - 3) / kBlockSize; ++b) {
          const std::byte* const block = cache->blocks(0, g)[b];
          blocks[is_exact].emplace_back(block, block + BlockBytes(model->layout().shape(0, g)));
        }
      }
    }
    EXPECT_GT(blocks[0].size(), 0u);
    EXPECT_TRUE(blocks[0] == blocks[1]);
  }
}

// The closed formulas by hand: whole keys until the prompt ends, and what was there before counts
// for admission.
TEST_F(RetainedModelTest, WholeKeysAreAdmittedAndGoWhereThePromptEnds) {
  for (const char* spec : {"fdc+h2o(keep=0.4,prune=prompt,score=exact,sink=4)",
                           "fdc+tova(budget=40,score=exact,sink=0)",
                           "fdc+snapkv(budget=100,score=exact,sink=0)+kivi(bits=2)"}) {
    SCOPED_TRACE(spec);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    const CacheLayout& layout = model->layout();
    const auto read = [&](int64_t budget) {
      BlockPool pool(budget);
      SequenceCache cache(&layout, &pool);
      cache.set_n_prompt(kPrompt, kTokens - kPrompt);
      while (cache.n_tokens() < kTokens) {
        const int begin = cache.n_tokens();
        const int n = static_cast<int>(std::min<int64_t>(kTokens - begin, cache.max_step()));
        KVL_RETURN_IF_ERROR(cache.Extend(n));
        if (begin + n == kPrompt) {  // before it is cut
          int64_t n_bytes = 0;
          for (int l = 0; l < layout.n_layers; ++l) {
            for (int g = 0; g < layout.n_kv_heads; ++g) {
              n_bytes += std::ssize(cache.blocks(l, g)) * kBlockSize * 2 *
                         (reference_.head_dim + layout.shape(l, g).rank_v);
            }
          }
          EXPECT_EQ(cache.bytes().blocks, n_bytes);
        }
        const SequenceStep step{&cache, std::span(ids_).subspan(begin, n)};
        KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
        EXPECT_EQ(pool.usage().used_bytes, SequenceBytes(layout, begin + n, n, kPrompt));
      }
      return OkStatus();
    };
    const int64_t peak = PeakSequenceBytes(layout, kTokens, 512, kPrompt);
    EXPECT_GT(peak, SequenceBytes(layout, kTokens, 1, kPrompt));
    const Status status = read(peak);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(read(peak - 1).code(), StatusCode::kResourceExhausted);
  }
}

// What is dropped is free for others, sealed or not.
TEST_F(RetainedModelTest, FreedBytesAdmitAnotherSequence) {
  struct Budget {
    const char* spec;
    int n_tokens;
  };
  for (const auto& [spec, n_tokens] : {Budget{"h2o(budget=64,sink=0)", kPrompt},
                                       Budget{"h2o(budget=70,sink=0)+gear(bits=4)", kManyTokens}}) {
    SCOPED_TRACE(spec);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    const int64_t full = SequenceBytes(model->layout(), n_tokens, 1, kPrompt);
    BlockPool pool(PeakSequenceBytes(model->layout(), n_tokens, 512, kPrompt) + full);
    std::vector<std::unique_ptr<SequenceCache>> caches;
    const auto read = [&] {
      caches.push_back(std::make_unique<SequenceCache>(&model->layout(), &pool));
      caches.back()->set_n_prompt(kPrompt);
      while (caches.back()->n_tokens() < n_tokens) {
        const int begin = caches.back()->n_tokens();
        const int n =
            static_cast<int>(std::min<int64_t>(n_tokens - begin, caches.back()->max_step()));
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
}

}  // namespace
}  // namespace kvlathe
