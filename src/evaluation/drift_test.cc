#include "evaluation/drift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/engine.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/spec/spec.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kDriftBudgetBytes = 64 << 20;

class DriftTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Load(MakeRandomSource(3));
    none_ = Make("none");
    for (int t = 0; t < 700; ++t) tokens_.push_back((t * 37 + t / 11) % kSmallVocabulary);
  }
  void Load(std::unique_ptr<TensorSource> source) {
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, std::move(source),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
  }
  // A positive rate: with a random basis, which is no identity.
  std::unique_ptr<Model> Make(const std::string& spec_text, double rate = 0) {
    const Spec spec = Spec::Parse(spec_text).value();
    const ModelBasis basis = rate > 0 ? DrawRandomBasis(2, 2, 32, rate, 1) : ModelBasis{};
    auto model = CreateModel(weights_, PartsOf(spec, rate > 0 ? &basis : nullptr));
    EXPECT_TRUE(model.ok()) << model.status();
    (*model)->set_deterministic(true);  // so that what runs beside a sequence changes nothing
    return *std::move(model);
  }
  DriftPlan Plan(const DriftOptions& options) {
    auto plan = PlanDrift(tokens_, std::nullopt, options, SmallConfig().max_seq_len);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  DriftResult Measure(const std::vector<Model*>& models, const DriftPlan& plan) {
    auto result = MeasureDrift(none_.get(), models, plan, kDriftBudgetBytes, &threads_, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  // What an engine generates greedily, without the ends of sequences.
  std::vector<int32_t> Generate(Model* model, const std::vector<int32_t>& prompt, int n_tokens) {
    HostPool pool(kDriftBudgetBytes);
    Engine engine({model}, &pool, {});
    Request request;
    request.prompt = prompt;
    request.max_tokens = n_tokens;
    std::vector<int32_t> text;
    const auto submitted = engine.Submit(
        std::move(request),
        [](Engine::RequestId, const GeneratedToken&) { return FinishReason::kNone; },
        [&](Engine::RequestId, const RequestOutcome& outcome) { text = outcome.tokens; });
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    EXPECT_TRUE(engine.RunUntilIdle().ok());
    return text;
  }
  // Logits before each token of `text`, [n][vocabulary], fed one by one behind the prompt.
  std::vector<std::vector<float>> LogitsOf(Model* model, const std::vector<int32_t>& prompt,
                                           const std::vector<int32_t>& text) {
    HostPool pool(kDriftBudgetBytes);
    SequenceCache cache(&model->layout(), &pool);
    EXPECT_TRUE(Prefill(model, &cache, prompt).ok());
    std::vector<std::vector<float>> rows;
    for (size_t t = 0;; ++t) {
      rows.emplace_back(model->logits(0).begin(), model->logits(0).end());
      if (t + 1 == text.size()) return rows;
      EXPECT_TRUE(Prefill(model, &cache, {&text[t], 1}).ok());
    }
  }

  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> none_;
  std::vector<int32_t> tokens_;
};

std::vector<double> Probabilities(std::span<const float> logits) {
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(double{x}));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

TEST_F(DriftTest, CutsPromptsThatStartWithBosAndRefusesWhatCannotBe) {
  const DriftOptions options = {.n_prompts = 3, .prompt_tokens = 100, .n_tokens = 50};
  const auto plan = PlanDrift(tokens_, 1, options, 150);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->prompts.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(plan->prompts[i].size(), 100u);
    EXPECT_EQ(plan->prompts[i][0], 1);
    EXPECT_TRUE(std::equal(plan->prompts[i].begin() + 1, plan->prompts[i].end(),
                           tokens_.begin() + static_cast<int64_t>(i) * 99));
  }
  const auto refusal = [&](const DriftOptions& asked, int context) {
    const Status status = PlanDrift(tokens_, std::nullopt, asked, context).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return MessageOf(status);
  };
  EXPECT_NE(refusal(options, 149).find("need a context of 150, but it is 149"), std::string::npos);
  DriftOptions many = options;
  many.n_prompts = 8;
  EXPECT_NE(refusal(many, 512).find("enough for 7 prompts of 100, but 8 are asked for"),
            std::string::npos);
  DriftOptions few = options;
  few.n_tokens = kStretches - 1;
  refusal(few, 512);
}

TEST_F(DriftTest, TheUncompressedCacheNeverParts) {
  const auto other = Make("none");
  const DriftPlan plan = Plan({.n_prompts = 3, .prompt_tokens = 70, .n_tokens = 90});
  const DriftResult result = Measure({other.get()}, plan);
  const Drift& drift = result.drifts[0];
  EXPECT_EQ(drift.parted_at, (std::vector<int>{90, 90, 90}));
  EXPECT_EQ(drift.mean_parted_at, 90);
  EXPECT_EQ(drift.n_never_parted, 3);
  EXPECT_LT(drift.kl, 1e-12);
  EXPECT_EQ(drift.top1_agreement, 1);
  EXPECT_FALSE(drift.text_nll.has_value());
  EXPECT_FALSE(drift.own_nll.has_value());
  EXPECT_EQ(drift.texts, result.none_texts);
  EXPECT_EQ(drift.repeats, drift.none_repeats);
  const double reference = static_cast<double>(UncompressedBytes(2, 2, 32, 159));
  EXPECT_NEAR(drift.kv_fraction, SequenceBytes(other->layout(), 159) / reference, 1e-9);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.none_texts[i], Generate(none_.get(), plan.prompts[i], 90));
  }
}

// Caches with a basis, and with codes that are sealed while the text grows.
TEST_F(DriftTest, PartsWhereTwoFreeGenerationsPart) {
  const auto half = Make("none", 0.5), most = Make("none", 0.9), kivi = Make("kivi(bits=2,run=64)");
  const DriftPlan plan = Plan({.n_prompts = 3, .prompt_tokens = 81, .n_tokens = 200});
  const std::vector<Model*> models = {half.get(), most.get(), kivi.get()};
  const DriftResult result = Measure(models, plan);
  std::set<int> met;
  for (size_t m = 0; m < models.size(); ++m) {
    const Drift& drift = result.drifts[m];
    std::vector<int> expected;
    for (size_t i = 0; i < plan.prompts.size(); ++i) {
      const std::vector<int32_t> free = Generate(models[m], plan.prompts[i], 200);
      EXPECT_EQ(drift.texts[i], free) << m << " " << i;
      const auto [at, unused] =
          std::mismatch(free.begin(), free.end(), result.none_texts[i].begin());
      expected.push_back(static_cast<int>(at - free.begin()));
    }
    EXPECT_EQ(drift.parted_at, expected) << m;
    EXPECT_EQ(drift.n_never_parted, std::count(expected.begin(), expected.end(), 200));
    EXPECT_DOUBLE_EQ(drift.mean_parted_at,
                     std::accumulate(expected.begin(), expected.end(), 0.0) / 3);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(drift.median_parted_at, expected[1]);
    EXPECT_GT(drift.kl, 1e-6);
    EXPECT_LT(drift.top1_agreement, 1);
    met.insert(expected.begin(), expected.end());
  }
  // Some at once and some on the way, or the claim would be cheap.
  EXPECT_EQ(result.drifts[1].n_never_parted, 0);
  EXPECT_GT(met.size(), 3u);
}

TEST_F(DriftTest, NumbersAreThoseOfTheirDefinitions) {
  const auto lossy = Make("none", 0.8);
  const DriftPlan plan = Plan({.n_prompts = 2, .prompt_tokens = 60, .n_tokens = 72});
  const DriftResult result = Measure({lossy.get()}, plan);
  const Drift& drift = result.drifts[0];
  std::vector<double> kl_of_prompt(2), kl_of_stretch(kStretches);
  double n_agree = 0, text_nll = 0, own_nll = 0, n_behind = 0;
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<int32_t>&own = result.none_texts[i], &text = drift.texts[i];
    const auto base = LogitsOf(none_.get(), plan.prompts[i], own);
    const auto cache = LogitsOf(lossy.get(), plan.prompts[i], own);
    const auto scored = LogitsOf(none_.get(), plan.prompts[i], text);
    for (size_t t = 0; t < own.size(); ++t) {
      const std::vector<double> p = Probabilities(base[t]), q = Probabilities(cache[t]);
      double kl = 0;
      for (size_t v = 0; v < p.size(); ++v) kl += p[v] * std::log(p[v] / q[v]);
      kl_of_prompt[i] += kl / 72;
      kl_of_stretch[t / 9] += kl / 18;
      n_agree += ArgMax(base[t]) == ArgMax(cache[t]);
      if (static_cast<int>(t) < drift.parted_at[i]) continue;
      own_nll -= std::log(p[own[t]]);
      text_nll -= std::log(Probabilities(scored[t])[text[t]]);
      ++n_behind;
    }
  }
  const double kl = (kl_of_prompt[0] + kl_of_prompt[1]) / 2;
  EXPECT_GT(kl, 1e-4);
  EXPECT_NEAR(drift.kl / kl, 1, 1e-4);
  ASSERT_TRUE(drift.kl_stderr.has_value());
  EXPECT_NEAR(*drift.kl_stderr, std::abs(kl_of_prompt[0] - kl_of_prompt[1]) / 2, 1e-4 * kl);
  for (int s = 0; s < kStretches; ++s) {
    EXPECT_NEAR(drift.kl_over_steps[s] / kl_of_stretch[s], 1, 1e-3) << s;
  }
  EXPECT_DOUBLE_EQ(drift.top1_agreement, n_agree / 144);
  ASSERT_GT(n_behind, 64);  // more than is scored in one forward
  EXPECT_NEAR(drift.text_nll.value(), text_nll / n_behind, 1e-4);
  EXPECT_NEAR(drift.own_nll.value(), own_nll / n_behind, 1e-4);
  EXPECT_DOUBLE_EQ(drift.repeats,
                   (RepeatedShare(drift.texts[0]) + RepeatedShare(drift.texts[1])) / 2);
  EXPECT_DOUBLE_EQ(drift.none_repeats,
                   (RepeatedShare(result.none_texts[0]) + RepeatedShare(result.none_texts[1])) / 2);
  const DriftPlan one = Plan({.n_prompts = 1, .prompt_tokens = 60, .n_tokens = 8});
  EXPECT_FALSE(Measure({lossy.get()}, one).drifts[0].kl_stderr.has_value());
}

TEST(RepeatedShare, CountsFourGramsThatStoodThereBefore) {
  EXPECT_EQ(RepeatedShare(std::vector<int32_t>{1, 2, 3}), 0);
  EXPECT_EQ(RepeatedShare(std::vector<int32_t>{1, 2, 3, 4, 5, 1, 2, 3}), 0);
  EXPECT_DOUBLE_EQ(RepeatedShare(std::vector<int32_t>{1, 1, 1, 1, 1, 1}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(RepeatedShare(std::vector<int32_t>{1, 2, 3, 4, 9, 1, 2, 3, 4}), 1.0 / 6);
}

TEST_F(DriftTest, ABudgetThatIsTooSmallIsAnErrorOfPromptAndCache) {
  const auto lossy = Make("none", 0.9);
  const DriftPlan plan = Plan({.n_prompts = 3, .prompt_tokens = 81, .n_tokens = 200});
  const auto measure = [&](int64_t budget) {
    Model* models[] = {lossy.get()};
    return MeasureDrift(none_.get(), models, plan, budget, &threads_, nullptr).status();
  };
  const Status first = measure(1 << 10);
  EXPECT_EQ(first.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(MessageOf(first).starts_with("the uncompressed cache: prompt 1, token 1: ")) << first;
  const Status later = measure(3 * SequenceBytes(none_->layout(), 100));
  EXPECT_EQ(later.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(later).find("prompt "), std::string::npos) << later;
}

TEST_F(DriftTest, LogitsThatAreNotFiniteAreAnErrorOfPromptAndToken) {
  const DriftPlan plan = Plan({.n_prompts = 3, .prompt_tokens = 20, .n_tokens = 40});
  const auto texts = Measure({}, plan).none_texts;
  // A token that no prompt has, and where it is generated first.
  std::set<int32_t> known;
  for (const auto& prompt : plan.prompts) known.insert(prompt.begin(), prompt.end());
  size_t i = 0, t = 0;
  while (known.count(texts[i][t]) > 0) {
    if (++i == texts.size()) i = 0, ++t;
    ASSERT_LT(t, 38u) << "nothing but tokens of the prompts is generated";
  }
  Load(std::make_unique<OverflowingSource>(3, texts[i][t]));
  const auto overflowing = Make("none");
  const auto measure = [&](Model* none, Model* other, const DriftPlan& asked) {
    return MeasureDrift(none, {&other, 1}, asked, kDriftBudgetBytes, &threads_, nullptr).status();
  };
  const Status of_cache = measure(none_.get(), overflowing.get(), plan);
  EXPECT_EQ(of_cache.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(MessageOf(of_cache).starts_with(fmt::format(
      "cache 1 of 1: prompt {}, token {}: the model computed logits that are not finite", i + 1,
      t + 2)))
      << of_cache;
  DriftPlan spoilt = plan;
  spoilt.prompts[1].back() = texts[i][t];
  const Status of_none = measure(overflowing.get(), none_.get(), spoilt);
  EXPECT_EQ(of_none.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(MessageOf(of_none).starts_with("the uncompressed cache: prompt 2, token 1: "))
      << of_none;
}

}  // namespace
}  // namespace kvlathe
