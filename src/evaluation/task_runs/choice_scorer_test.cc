#include "evaluation/task_runs/choice_scorer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kRoomyBytes = int64_t{64} << 20;
constexpr int kPromptTokens = 100;

std::vector<int32_t> RandomIds(int n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  return ids;
}

// Choices of one and of several tokens, one of them longer than a forward of all takes.
PreparedExample RandomChoices() {
  PreparedExample example;
  example.prompt = RandomIds(kPromptTokens, 1);
  PreparedQuestion question{.n_prompt = kPromptTokens};
  for (const int n : {5, 1, 90, 2}) {
    question.choices.push_back(RandomIds(n, 10 + n));
    question.n_context.push_back(0);
    example.text.choices.push_back("a choice");
  }
  example.questions.push_back(question);
  return example;
}

std::vector<int32_t> ChainOf(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class ChoiceScorerTest : public testing::Test {
 protected:
  // Deterministic: how tokens are put together in forwards changes no bit.
  std::unique_ptr<Model> MakeModel(const std::string& text) {
    const auto spec = Spec::Parse(text);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights),
                             PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    EXPECT_TRUE(model.ok()) << model.status();
    (*model)->set_deterministic(true);
    return *std::move(model);
  }

  WeighedChoices Weigh(Model* model, const PreparedExample& example,
                       int64_t budget_bytes = kRoomyBytes) {
    HostPool pool(budget_bytes);
    auto weighed = WeighChoices(model, &pool, example);
    EXPECT_TRUE(weighed.ok()) << weighed.status();
    EXPECT_EQ(pool.usage().used_bytes, 0);
    peak_bytes_ = pool.usage().peak_bytes;
    return *std::move(weighed);
  }

  // Of tokens[n_given...], token by token in a sequence of its own whose prompt has n_prompt.
  static double OneByOne(Model* model, const std::vector<int32_t>& tokens, size_t n_prompt,
                         size_t n_given, int64_t* n_bytes = nullptr) {
    HostPool pool(kRoomyBytes);
    SequenceCache cache(&model->layout(), &pool);
    EXPECT_TRUE(Prefill(model, &cache, std::span(tokens).first(n_prompt)).ok());
    if (n_bytes != nullptr) *n_bytes = cache.bytes().total();
    double sum = 0;
    for (size_t t = n_prompt; t < tokens.size(); ++t) {
      if (t > n_prompt) {
        EXPECT_TRUE(cache.Extend(1).ok());
        const SequenceStep step{&cache, std::span(tokens).subspan(t - 1, 1)};
        EXPECT_TRUE(model->Forward({&step, 1}).ok());
      }
      if (t < n_given) continue;
      const std::span<const float> logits = model->logits(0);
      double all = 0;
      for (const float v : logits) all += std::exp(static_cast<double>(v));
      sum += logits[tokens[t]] - std::log(all);
    }
    return sum;
  }

  ThreadPool threads_{2};
  int64_t peak_bytes_ = 0;
};

// Caches that drop entries at every token (a step takes one then), at the end of the prompt, that
// seal, and that keep all.
constexpr const char* kScorerSpecs[] = {"none",
                                        "fdc(rate=0.3)",
                                        "kivi(bits=2,run=64)",
                                        "h2o(keep=0.4)",
                                        "h2o(keep=0.3)+gear(bits=4)",
                                        "snapkv(budget=50)",
                                        "fdc(rate=0.3)+snapkv(budget=50,score=exact,sink=0)",
                                        "tova(budget=40,sink=0)",
                                        "window(size=30)"};

TEST_F(ChoiceScorerTest, EveryChoiceHasTheLikelihoodThatItHasAlone) {
  const PreparedExample example = RandomChoices();
  const PreparedQuestion& question = example.questions[0];
  for (const char* spec : kScorerSpecs) {
    SCOPED_TRACE(spec);
    const auto model = MakeModel(spec);
    const WeighedChoices weighed = Weigh(model.get(), example);
    ASSERT_EQ(weighed.log_likelihoods.size(), 1u);
    int64_t n_bytes = 0;
    for (size_t i = 0; i < question.choices.size(); ++i) {
      const double expected = OneByOne(model.get(), ChainOf(example.prompt, question.choices[i]),
                                       kPromptTokens, kPromptTokens, &n_bytes);
      EXPECT_NEAR(weighed.log_likelihoods[0][i], expected, 1e-4) << i;
      ASSERT_EQ(weighed.tokens[0][i].size(), question.choices[i].size());
      double sum = 0;
      for (const WeighedToken& token : weighed.tokens[0][i]) sum += token.logprob;
      EXPECT_EQ(sum, weighed.log_likelihoods[0][i]);
    }
    // The cache that is measured is the one behind the prompt.
    EXPECT_EQ(weighed.n_cached_tokens, kPromptTokens);
    EXPECT_EQ(weighed.kv_bytes.total(), n_bytes);
  }
}

TEST_F(ChoiceScorerTest, WithoutRoomForCopiesThePromptIsReadAgain) {
  const PreparedExample example = RandomChoices();
  for (const char* spec : kScorerSpecs) {
    SCOPED_TRACE(spec);
    const auto model = MakeModel(spec);
    const WeighedChoices roomy = Weigh(model.get(), example);
    const int64_t most_bytes = peak_bytes_;
    // What the longest choice takes alone holds no two sequences for long.
    PreparedExample longest = example;
    longest.questions[0].choices = {example.questions[0].choices[2]};
    longest.questions[0].n_context = {0};
    Weigh(model.get(), longest);
    const int64_t least_bytes = peak_bytes_;
    ASSERT_LT(least_bytes, most_bytes);
    for (const int64_t budget_bytes : {least_bytes, (least_bytes + most_bytes) / 2}) {
      const WeighedChoices tight = Weigh(model.get(), example, budget_bytes);
      EXPECT_EQ(tight.log_likelihoods, roomy.log_likelihoods);
      EXPECT_EQ(tight.kv_bytes.total(), roomy.kv_bytes.total());
    }
    HostPool pool(least_bytes / 4);
    EXPECT_EQ(WeighChoices(model.get(), &pool, example).status().code(),
              StatusCode::kResourceExhausted);
    EXPECT_EQ(pool.usage().used_bytes, 0);
  }
}

TEST_F(ChoiceScorerTest, ALaterQuestionGoesOnFromTheCacheOfTheFirst) {
  PreparedExample example = RandomChoices();
  example.prompt = ChainOf(example.prompt, RandomIds(30, 5));
  example.questions.push_back(example.questions[0]);
  example.questions[1].n_prompt = kPromptTokens + 30;
  for (const char* spec : {"none", "h2o(keep=0.4)", "snapkv(budget=50)", "kivi(bits=2,run=64)"}) {
    SCOPED_TRACE(spec);
    const auto model = MakeModel(spec);
    const WeighedChoices weighed = Weigh(model.get(), example);
    ASSERT_EQ(weighed.log_likelihoods.size(), 2u);
    EXPECT_EQ(weighed.n_cached_tokens, kPromptTokens + 30);
    for (size_t i = 0; i < example.questions[1].choices.size(); ++i) {
      const std::vector<int32_t> whole = ChainOf(example.prompt, example.questions[1].choices[i]);
      EXPECT_NEAR(weighed.log_likelihoods[1][i],
                  OneByOne(model.get(), whole, kPromptTokens, kPromptTokens + 30), 1e-4);
    }
  }
}

TEST_F(ChoiceScorerTest, TheContextOfAChoiceIsReadAndNotWeighed) {
  PreparedExample example = RandomChoices();
  PreparedQuestion& question = example.questions[0];
  question.n_context = {3, 0, 1, 1};
  for (const char* spec : {"none", "h2o(keep=0.4)", "snapkv(budget=50)"}) {
    SCOPED_TRACE(spec);
    const auto model = MakeModel(spec);
    const WeighedChoices weighed = Weigh(model.get(), example);
    for (size_t i = 0; i < question.choices.size(); ++i) {
      const std::vector<int32_t> whole = ChainOf(example.prompt, question.choices[i]);
      EXPECT_NEAR(
          weighed.log_likelihoods[0][i],
          OneByOne(model.get(), whole, kPromptTokens, kPromptTokens + question.n_context[i]), 1e-4);
    }
  }
}

TEST_F(ChoiceScorerTest, ContextsWithoutACommonTokenAreSequencesOfTheirOwn) {
  PreparedExample example;
  PreparedQuestion question;
  for (const int n : {20, 25}) {
    question.choices.push_back(RandomIds(n, n));
    question.n_context.push_back(n - 8);
    example.text.choices.push_back("a choice");
  }
  example.questions.push_back(question);
  for (const char* spec : {"none", "h2o(keep=0.4)", "snapkv(budget=8)"}) {
    SCOPED_TRACE(spec);
    const auto model = MakeModel(spec);
    const WeighedChoices weighed = Weigh(model.get(), example);
    EXPECT_EQ(weighed.n_cached_tokens, 12);
    for (size_t i = 0; i < 2; ++i) {
      const size_t n_context = static_cast<size_t>(question.n_context[i]);
      EXPECT_NEAR(weighed.log_likelihoods[0][i],
                  OneByOne(model.get(), question.choices[i], n_context, n_context), 1e-4);
    }
  }
}

}  // namespace
}  // namespace kvlathe
