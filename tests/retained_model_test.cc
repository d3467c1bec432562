// The forward with entries dropped against the literal decoder with literal retention.
#include "retained_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/cpu_features.h"
#include "model_shapes.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceRetention;

// What several specs keep.
const ReferenceRetention kWindow = {
    .name = "window", .budget = 54, .n_recent = 50, .run = kRun, .n_sink = 4};
const ReferenceRetention kH2o = {
    .name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4};
const ReferenceRetention kMas = {
    .name = "mas", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4};
const ReferenceRetention kTova = {.name = "tova", .budget = 48, .shared = true, .run = kRun};
const ReferenceRetention kKeyformer = {
    .name = "keyformer", .keep = 0.4, .recent = 0.3, .tau_end = 2, .run = kRun, .n_sink = 4};
const ReferenceRetention kSnapKv = {
    .name = "snapkv", .budget = 60, .n_recent = 16, .kernel = 5, .prompt_only = true, .n_sink = 4};

const ReferenceRetention kKvzip = {
    .name = "kvzip", .budget = 60, .n_recent = 16, .prompt_only = true, .n_sink = 4};
const ReferenceRetention kKvzipJoint = {
    .name = "kvzip", .budget = 60, .n_recent = 16, .joint = true, .prompt_only = true, .n_sink = 4};

const RetainedCase kCases[] = {
    {"window(size=50,sink=4)", kWindow},
    {"h2o(keep=0.4,recent=0.5,sink=4)", kH2o},
    {"h2o(budget=40,recent=0.25,sink=0)",
     {.name = "h2o", .budget = 40, .recent = 0.25, .run = kRun}},
    {"h2o(keep=0.3,budget=prompt,recent=0.5,prune=prompt,sink=2)",
     {.name = "h2o", .keep = 0.3, .of_prompt = true, .recent = 0.5, .n_sink = 2}},
    {"mas(keep=0.4,recent=0.5,sink=4)", kMas},
    {"fdc+mas(keep=0.4,recent=0.5,score=exact,sink=4)", kMas},
    {"tova(budget=48,sink=0)", kTova},
    {"tova(keep=0.5,heads=own,sink=4)", {.name = "tova", .keep = 0.5, .run = kRun, .n_sink = 4}},
    {"keyformer(keep=0.4,recent=0.3,sink=4)", kKeyformer},
    {"keyformer(keep=0.5,budget=prompt,interval=8,tau_init=0.5,tau_end=1.5,prune=prompt,sink=0)",
     {.name = "keyformer",
      .keep = 0.5,
      .of_prompt = true,
      .recent = 0.3,
      .interval = 8,
      .tau_init = 0.5,
      .tau_end = 1.5}},
    {"snapkv(budget=60,window=16,kernel=5,sink=4)", kSnapKv},
    {"kvzip(budget=60,window=16,heads=own,sink=4)", kKvzip, false, 2048},
    {"kvzip(budget=60,window=16,heads=own,chunk=50,sink=4)", kKvzip, false, 50},
    {"kvzip(budget=60,window=16,chunk=50,sink=4)", kKvzipJoint, false, 50},
    {"palu+kvzip(budget=60,window=16,chunk=90,sink=4)", kKvzipJoint, true, 90},
    {"palu+kvzip(budget=60,window=16,heads=own,chunk=90,sink=4)", kKvzip, true, 90},
    {"fdc+kvzip(budget=60,window=16,score=exact,sink=4)", kKvzipJoint, false, 2048},
    {"fdc+kvzip(budget=60,window=16,heads=own,sink=4)", kKvzip, false, 2048},
    {"palu+keyformer(keep=0.4,recent=0.3,sink=4)", kKeyformer, true},
    {"palu+snapkv(budget=60,window=16,kernel=5,sink=0)",
     {.name = "snapkv", .budget = 60, .n_recent = 16, .kernel = 5, .prompt_only = true},
     true},
    {"palu(group=2)+window(size=50,sink=4)", kWindow, true},
    {"palu(group=2)+tova(budget=48,sink=0)", kTova, true},
    {"fdc+h2o(keep=0.4,recent=0.5,sink=4)", kH2o},
    {"fdc+h2o(keep=0.4,recent=0.5,score=exact,sink=4)", kH2o},
    {"fdc+h2o(keep=0.3,budget=prompt,recent=0.5,prune=prompt,score=exact,sink=0)",
     {.name = "h2o", .keep = 0.3, .of_prompt = true, .recent = 0.5}},
    {"fdc+tova(budget=48,score=exact,sink=2)",
     {.name = "tova", .budget = 48, .shared = true, .run = kRun, .n_sink = 2}},
    {"fdc+keyformer(keep=0.4,recent=0.3,score=exact,sink=4)", kKeyformer},
    {"fdc+snapkv(budget=60,window=16,kernel=5,score=exact,sink=4)", kSnapKv},
    {"fdc+snapkv(budget=500,window=16,score=exact,sink=0)",
     {.name = "snapkv", .budget = 500, .n_recent = 16, .kernel = 5, .prompt_only = true}},
};

TEST_P(RetainedModelTest, KeepsWhatTheLiteralMethodKeeps) { KeepsWhatTheLiteralMethodKeeps(); }

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
      if (caches[i]->must_read_again()) {
        ASSERT_TRUE(model->ReadPromptAgain(caches[i].get(), ids_, 30).ok());
      }
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
    for (int l = 0; l < reference_.n_layers && !single->head(l, 0).entries().empty(); ++l) {
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

// Heads have sink logits, which votes are divided by too, keys have biases, and scores are capped.
class RetainedAbsoluteModelTest : public RetainedModelTest {
 protected:
  static void SetUpTestSuite() { SetUpModel(testing::GptOssWithoutWindows(0.5), /*score_cap=*/3); }
};

TEST_P(RetainedAbsoluteModelTest, KeepsWhatTheLiteralMethodKeeps) {
  KeepsWhatTheLiteralMethodKeeps();
}

const RetainedCase kAbsoluteCases[] = {
    {"h2o(keep=0.4,recent=0.5,sink=4)", kH2o},
    {"fdc+h2o(keep=0.4,recent=0.5,score=exact,sink=4)", kH2o},
    {"tova(budget=48,sink=0)", kTova},
    {"keyformer(keep=0.4,recent=0.3,sink=4)", kKeyformer},
    {"fdc+snapkv(budget=60,window=16,kernel=5,score=exact,sink=4)", kSnapKv},
    {"palu+kvzip(budget=60,window=16,heads=own,chunk=90,sink=4)", kKvzip, true, 90},
};

INSTANTIATE_TEST_SUITE_P(Specs, RetainedAbsoluteModelTest, ::testing::ValuesIn(kAbsoluteCases),
                         [](const auto& test) {
                           std::string name = test.param.spec;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

// A budget for every position drops nothing: the same bits as without retention.
TEST_F(RetainedModelTest, ABudgetForAllChangesNothing) {
  for (const char* spec :
       {"h2o(keep=1,sink=0)", "tova(budget=1000,sink=0)", "keyformer(keep=1,sink=0)",
        "snapkv(budget=1000,sink=0)", "kvzip(budget=1000,sink=0)", "window(size=1000,sink=0)"}) {
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
        "kvzip(keep=0.4,chunk=60,sink=4)", "fdc+h2o(keep=0.4,score=exact,sink=4)",
        "fdc+tova(budget=60,score=exact,sink=0)",
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
        if (cache->must_read_again()) {
          ASSERT_TRUE(model->ReadPromptAgain(cache.get(), ids_, 40).ok());
        }
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
          std::vector<std::byte>& block =
              blocks[is_exact].emplace_back(BlockBytes(model->layout().shape(0, g)));
          cache->device().Download({cache->head(0, g).blocks()[b]}, block);
        }
      }
    }
    EXPECT_GT(blocks[0].size(), 0u);
    EXPECT_TRUE(blocks[0] == blocks[1]);
  }
}

}  // namespace
}  // namespace kvlathe
