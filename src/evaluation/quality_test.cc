#include "evaluation/quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "evaluation/bench/bench_model.h"
#include "evaluation/bench/deciding_weights.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

class QualityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(SmallConfig(), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    for (int t = 0; t < 700; ++t) tokens_.push_back((t * 37 + t / 11) % 128);
  }
  // A negative rate: without a basis.
  std::unique_ptr<Model> Make(double rate) {
    const ModelBasis basis = rate < 0 ? ModelBasis{} : DrawRandomBasis(2, 2, 32, rate, 1);
    auto model = CreateModel(weights_, PartsOf(rate < 0 ? nullptr : &basis, /*n_sink=*/4));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  EvaluationText Cut(int window_tokens, std::optional<int32_t> bos) {
    auto text = CutIntoWindows(
        tokens_, [](int32_t) { return 2; }, bos, window_tokens);
    EXPECT_TRUE(text.ok()) << text.status();
    return *std::move(text);
  }
  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::vector<int32_t> tokens_;
};

TEST_F(QualityTest, CutsWindowsThatStartWithBosAndLeavesOutTheRest) {
  const EvaluationText text = Cut(100, 1);
  ASSERT_EQ(text.windows.size(), 7u);  // 99 tokens of text in each
  for (const auto& window : text.windows) {
    EXPECT_EQ(window.size(), 100u);
    EXPECT_EQ(window[0], 1);
  }
  EXPECT_EQ(text.windows[1][1], tokens_[99]);
  EXPECT_EQ(text.n_scored(), 7 * 50);
  EXPECT_EQ(Cut(5000, std::nullopt).windows.size(), 1u);
  EXPECT_FALSE(CutIntoWindows(
                   {tokens_.data(), 2}, [](int32_t) { return 1; }, std::nullopt, 100)
                   .ok());
}

TEST_F(QualityTest, AnInterruptEndsIt) {
  auto none = Make(-1);
  Model* models[] = {none.get()};
  int n_steps = 0;
  weights_->set_interrupt([&]() -> Status {
    return ++n_steps < 3 ? OkStatus() : Error(StatusCode::kCancelled, "enough");
  });
  const EvaluationText text = Cut(301, 1);
  EXPECT_EQ(MeasureQuality(models, text, 64 << 20, &threads_, nullptr).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(n_steps, 3);
  weights_->set_interrupt(nullptr);
  EXPECT_TRUE(MeasureQuality(models, text, 64 << 20, &threads_, nullptr).ok());
}

TEST_F(QualityTest, TheBaselineAgreesWithItselfAndSizesAreTheFormula) {
  auto none = Make(-1), half = Make(0.5);
  Model* models[] = {none.get(), half.get()};
  const EvaluationText text = Cut(301, 1);
  auto qualities = MeasureQuality(models, text, 64 << 20, &threads_, nullptr);
  ASSERT_TRUE(qualities.ok()) << qualities.status();
  const Quality& base = (*qualities)[0];
  EXPECT_EQ(base.kl, 0);
  EXPECT_EQ(base.top1_agreement, 1);
  EXPECT_EQ(base.n_tokens, text.n_scored());
  const Quality& lossy = (*qualities)[1];
  EXPECT_GT(lossy.kl, 1e-4);  // the random basis is no identity
  EXPECT_GT(lossy.kl_stderr, 0);
  EXPECT_EQ(base.perplexity_change, 0);
  EXPECT_EQ(base.perplexity_change_stderr, 0);
  EXPECT_NEAR(lossy.perplexity_change, lossy.perplexity / base.perplexity - 1, 1e-9);
  EXPECT_GT(lossy.perplexity_change_stderr, 0);
  for (int i = 0; i < 2; ++i) {
    const double reference = static_cast<double>(UncompressedBytes(2, 2, 32, 301));
    EXPECT_DOUBLE_EQ((*qualities)[i].kv_fraction,
                     SequenceBytes(models[i]->layout(), 301) / reference);
    EXPECT_GE((*qualities)[i].kv_peak_fraction, (*qualities)[i].kv_fraction);
  }
  EXPECT_LT(lossy.kv_fraction, base.kv_fraction);
}

// Windows that are scored side by side, and those behind them, have their own means.
TEST_F(QualityTest, TheWorstWindowIsOneOfThoseThatAreScoredAlone) {
  auto none = Make(-1), half = Make(0.5);
  Model* models[] = {none.get(), half.get()};
  const EvaluationText text = Cut(101, 1);
  ASSERT_GT(text.windows.size(), 2u);
  const auto together = MeasureQuality(models, text, 64 << 20, &threads_, nullptr);
  ASSERT_TRUE(together.ok()) << together.status();
  double worst = 0, worst_top1 = 1, mean = 0, largest = 0;
  for (size_t w = 0; w < text.windows.size(); ++w) {
    const auto alone = MeasureQuality(models, {{text.windows[w]}, {text.token_bytes[w]}}, 64 << 20,
                                      &threads_, nullptr);
    ASSERT_TRUE(alone.ok()) << alone.status();
    const Quality& q = (*alone)[1];
    worst = std::max(worst, q.kl);
    worst_top1 = std::min(worst_top1, q.top1_agreement);
    mean += q.kl / static_cast<double>(text.windows.size());
    largest = std::max(largest, q.kl_tail.p999);
  }
  const KlTail& tail = (*together)[1].kl_tail;
  EXPECT_NEAR(tail.worst_window, worst, 1e-5 * worst);
  EXPECT_NEAR(tail.worst_window_top1, worst_top1, 1e-9);
  EXPECT_NEAR((*together)[1].kl, mean, 1e-5 * mean);
  EXPECT_LT(tail.median, mean);
  EXPECT_LE(tail.p999, largest * (1 + 1e-5));
  EXPECT_EQ((*together)[0].kl_tail.worst_window, 0);
}

// Perplexity of the scored half equals a token-by-token decode.
TEST_F(QualityTest, PerplexityIsThatOfDecodingTokenByToken) {
  auto model = Make(0.5);
  const EvaluationText text = Cut(130, std::nullopt);
  Model* models[] = {model.get()};
  auto qualities = MeasureQuality(models, {{text.windows[0]}, {text.token_bytes[0]}}, 64 << 20,
                                  &threads_, nullptr);
  ASSERT_TRUE(qualities.ok()) << qualities.status();
  HostPool pool(64 << 20);
  SequenceCache cache(&model->layout(), &pool);
  const std::vector<int32_t>& window = text.windows[0];
  double nll = 0;
  for (size_t t = 0; t + 1 < window.size(); ++t) {
    ASSERT_TRUE(Prefill(model.get(), &cache, {&window[t], 1}).ok());
    if (t + 1 < window.size() / 2) continue;
    double sum = 0;
    for (float x : model->logits(0)) sum += std::exp(x);
    nll += std::log(sum) - model->logits(0)[window[t + 1]];
  }
  const double n = static_cast<double>(window.size() - window.size() / 2);
  EXPECT_NEAR(std::log((*qualities)[0].perplexity), nll / n, 1e-4);
  EXPECT_NEAR((*qualities)[0].bits_per_byte, nll / n / std::log(2.0) / 2, 1e-4);
}

// Row-wise distance of centred logits, by the definition.
double LogitDeviation(std::span<const float> base, std::span<const float> logits) {
  const double n = static_cast<double>(base.size());
  double mean = 0, base_mean = 0, distance = 0, length = 0;
  for (const float x : logits) mean += x / n;
  for (const float x : base) base_mean += x / n;
  for (size_t i = 0; i < base.size(); ++i) {
    distance += std::pow((logits[i] - mean) - (base[i] - base_mean), 2);
    length += std::pow(base[i] - base_mean, 2);
  }
  return std::sqrt(distance) / std::sqrt(length);
}

TEST_F(QualityTest, StretchesAreThoseOfDecodingTokenByToken) {
  auto none = Make(-1), half = Make(0.5);
  Model* models[] = {none.get(), half.get()};
  EvaluationText text = Cut(131, std::nullopt);  // 65 tokens of prompt, 66 scored
  text.windows.resize(2);
  auto qualities = MeasureQuality(models, text, 64 << 20, &threads_, nullptr);
  ASSERT_TRUE(qualities.ok()) << qualities.status();
  std::vector<double> sums(kStretches);
  std::vector<int64_t> counts(kStretches);
  for (const std::vector<int32_t>& window : text.windows) {
    HostPool pool(64 << 20);
    SequenceCache base_cache(&none->layout(), &pool), cache(&half->layout(), &pool);
    for (size_t t = 0; t + 1 < window.size(); ++t) {
      ASSERT_TRUE(Prefill(none.get(), &base_cache, {&window[t], 1}).ok());
      ASSERT_TRUE(Prefill(half.get(), &cache, {&window[t], 1}).ok());
      if (t + 1 < window.size() / 2) continue;
      const size_t stretch = (t + 1 - 65) * kStretches / 66;
      sums[stretch] += LogitDeviation(none->logits(0), half->logits(0));
      ++counts[stretch];
    }
  }
  const Quality& q = (*qualities)[1];
  double kl = 0, n_agree = 0;
  ASSERT_EQ(q.over_steps.size(), size_t{kStretches});
  for (int i = 0; i < kStretches; ++i) {
    EXPECT_EQ(q.over_steps[i].n_tokens, counts[i]) << i;
    EXPECT_NEAR(q.over_steps[i].logit_deviation, sums[i] / static_cast<double>(counts[i]), 1e-4);
    kl += q.over_steps[i].kl * static_cast<double>(counts[i]);
    n_agree += q.over_steps[i].top1_agreement * static_cast<double>(counts[i]);
    EXPECT_EQ((*qualities)[0].over_steps[i].logit_deviation, 0);
  }
  EXPECT_NEAR(kl / static_cast<double>(q.n_tokens), q.kl, 1e-9);
  EXPECT_NEAR(n_agree / static_cast<double>(q.n_tokens), q.top1_agreement, 1e-9);
}

// A cache that drops an entry at every step takes one token in each, so its windows are scored side
// by side; with room for one window alone they are not.
TEST_F(QualityTest, WindowsSideBySideScoreAsOneAfterTheOther) {
  RetentionPlan plan;
  plan.votes = RetentionPlan::Votes::kAll;
  plan.keep = 0.5;
  plan.recent_share = 0.5;
  auto pruned = CreateModel(weights_, {.n_sink = 4, .retention = plan});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  auto none = Make(-1);
  Model* models[] = {none.get(), pruned->get()};
  EvaluationText text = Cut(131, std::nullopt);
  text.windows.resize(4);
  auto together = MeasureQuality(models, text, 64 << 20, &threads_, nullptr);
  ASSERT_TRUE(together.ok()) << together.status();
  double kl = 0, nll = 0;
  for (int w = 0; w < 4; ++w) {
    const EvaluationText one = {{text.windows[w]}, {text.token_bytes[w]}};
    auto alone = MeasureQuality(models, one, 64 << 20, &threads_, nullptr);
    ASSERT_TRUE(alone.ok()) << alone.status();
    kl += (*alone)[1].kl / 4;
    nll += std::log((*alone)[1].perplexity) / 4;
    EXPECT_EQ((*alone)[1].kv_fraction, (*together)[1].kv_fraction);
    EXPECT_EQ((*alone)[1].kv_peak_fraction, (*together)[1].kv_peak_fraction);
  }
  EXPECT_GT(kl, 1e-5);
  EXPECT_NEAR((*together)[1].kl, kl, 1e-5 * kl);
  EXPECT_NEAR(std::log((*together)[1].perplexity), nll, 1e-6);
  EXPECT_EQ((*together)[1].n_tokens, 4 * 66);
}

TEST_F(QualityTest, ABudgetThatIsTooSmallIsAnError) {
  auto model = Make(-1);
  Model* models[] = {model.get()};
  EXPECT_EQ(MeasureQuality(models, Cut(300, 1), 1 << 14, &threads_, nullptr).status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(QualityTest, LogitsThatAreNotFiniteAreAnErrorOfTheirWindowAndCache) {
  constexpr int32_t kOverflowing = 127;
  for (int32_t& id : tokens_) id %= kOverflowing;
  const auto sound = Make(-1);
  auto weights = ModelWeights::Load(SmallConfig(), DType::kF32,
                                    std::make_unique<OverflowingSource>(3, kOverflowing),
                                    MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  weights_ = *std::move(weights);
  const auto overflowing = Make(-1);
  const auto measure = [&](std::vector<Model*> models, int position) {
    EvaluationText text = Cut(100, 1);
    if (position >= 0) text.windows[1][position] = kOverflowing;
    return MeasureQuality(models, text, 64 << 20, &threads_, nullptr).status();
  };
  EXPECT_TRUE(measure({sound.get(), overflowing.get()}, -1).ok());
  for (const int position : {7, 49, 50, 98}) {
    EXPECT_TRUE(measure({sound.get()}, position).ok());
    const Status second = measure({sound.get(), overflowing.get()}, position);
    EXPECT_EQ(second.code(), StatusCode::kDataLoss);
    EXPECT_TRUE(MessageOf(second).starts_with("window 2: cache 2 of 2: ")) << second;
    const Status first = measure({overflowing.get(), sound.get()}, position);
    EXPECT_TRUE(MessageOf(first).starts_with("window 2: cache 1 of 2: ")) << first;
    // The first logits that the token should spoil are those of the next, or of the first scored
    // one; attention may spoil those of the rows that it computes together with it, at most 6.
    const std::string message = MessageOf(first);
    const size_t at = message.find("for token ");
    ASSERT_NE(at, std::string::npos) << first;
    const int token = std::stoi(message.substr(at + 10));
    EXPECT_LE(token, std::max(50, position + 1)) << first;
    EXPECT_GT(token, std::max(50, position + 1) - 6) << first;
  }
}

TEST_F(QualityTest, BenchModelCountsTokensPerSecond) {
  auto model = Make(0.5);
  auto row = BenchModel(model.get(), "fdc",
                        {.n_prompt = 0, .n_gen = 4, .n_depth = 70, .n_parallel = 2}, 2, 64 << 20);
  ASSERT_TRUE(row.ok()) << row.status();
  // Mean and deviation of two speeds say both, and these say the time, however long it was.
  const double spread = row->stddev_ts / std::sqrt(2.0);
  const double seconds = 2 * 4 * (1 / (row->avg_ts - spread) + 1 / (row->avg_ts + spread));
  EXPECT_NEAR(row->seconds / seconds, 1, 1e-6);
  EXPECT_GT(row->profile.linear, 0);
  // Shares of single steps.
  EXPECT_GT(row->rotate.p50, 0);
  EXPECT_GE(row->rotate.p99, row->rotate.p50);
  EXPECT_LT(row->rotate.p99, 1);
  EXPECT_GT(row->plan.p50, 0);
  EXPECT_LT(row->plan.p50, 1);
  EXPECT_GT(row->profile.plan, 0);
  EXPECT_LT(row->profile.plan, row->profile.attention);
  EXPECT_EQ(row->profile.rebuild, 0);  // keys are read as they are stored
  // 2 * 70 positions are far less than the budget, and a prompt of the whole context is too.
  EXPECT_GT(row->n_fit, 2);
  EXPECT_LE(row->n_fit * row->kv_bytes / 2, 64 << 20);
  EXPECT_EQ(row->longest_prompt, 512);
  EXPECT_FALSE(BenchModel(model.get(), "fdc", {.n_prompt = 600}, 1, 64 << 20).ok());
}

// What merges is merged in the depth too.
TEST_F(QualityTest, BenchModelFillsByMerging) {
  const auto bytes_of = [&](const char* spec) {
    auto model = CreateModel(weights_, PartsOf(*Spec::Parse(spec), nullptr));
    EXPECT_TRUE(model.ok()) << model.status();
    auto row = BenchModel(model->get(), spec, {.n_gen = 1, .n_depth = 511}, 1, 64 << 20);
    EXPECT_TRUE(row.ok()) << row.status();
    return row->kv_bytes;
  };
  const int64_t whole = bytes_of("none");
  // 512 positions become 4 + 127 entries, and the newest has its sums.
  EXPECT_LT(bytes_of("pool(n=4)"), whole * 2 / 5);
}

// As many as are said to fit do, of sequences whose entries the model decides, and no fifth more.
TEST_F(QualityTest, BenchModelSaysHowManyMergingSequencesFit) {
  ModelConfig deciding = SmallConfig();
  deciding.dmc = DmcConfig{.offset = 0, .weight_offset = 0};
  auto weights = ModelWeights::Load(deciding, DType::kF32, MakeRandomSource(3),
                                    MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::shared_ptr<ModelWeights> shared = *std::move(weights);
  for (const char* spec : {"none", "dmc", "dmc+kivi(bits=4)", "pool(n=4)"}) {
    SCOPED_TRACE(spec);
    auto model = CreateModel(shared, PartsOf(*Spec::Parse(spec), nullptr));
    ASSERT_TRUE(model.ok()) << model.status();
    constexpr int64_t kBudget = 3 << 20;
    const auto run = [&](int64_t n_parallel) {
      return BenchModel(model->get(), spec,
                        {.n_gen = 8, .n_depth = 400, .n_parallel = static_cast<int>(n_parallel)}, 1,
                        kBudget);
    };
    const auto few = run(4);
    ASSERT_TRUE(few.ok()) << few.status();
    ASSERT_GT(few->n_fit, 4);
    const auto fitting = run(few->n_fit);
    EXPECT_TRUE(fitting.ok()) << fitting.status();
    const auto too_many = run(few->n_fit * 6 / 5 + 1);
    EXPECT_EQ(too_many.status().code(), StatusCode::kResourceExhausted);
  }
}

// Random weights merge as much as is asked for, and not all heads alike.
TEST_F(QualityTest, RandomWeightsDecideAtACompressionRatio) {
  ModelConfig config = SmallConfig();
  config.n_layers = 6;
  config.n_kv_heads = 4;
  config.hidden_dim = 256;
  config.vocab_size = 512;
  for (const bool is_last : {true, false}) {
    for (const double compression : {1.0, 2.0, is_last ? 4.0 : 2.0}) {
      SCOPED_TRACE(compression);
      auto loaded = ModelWeights::Load(config, DType::kBf16, MakeRandomSource(3),
                                       MakeMachine(&threads_, SelectIsa().value()));
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const std::shared_ptr<ModelWeights> weights = *std::move(loaded);
      const Status decided =
          DecideAtRandom(compression, {.is_last = is_last, .weight_offset = 1}, weights);
      ASSERT_TRUE(decided.ok()) << decided;
      ASSERT_EQ(weights->config().dmc->is_last, is_last);
      EXPECT_EQ(weights->config().dmc->weight_offset, 1);
      auto model = CreateModel(weights, PartsOf(*Spec::Parse("dmc(sink=0)"), nullptr));
      ASSERT_TRUE(model.ok()) << model.status();
      const auto row = BenchModel(model->get(), "dmc", {.n_gen = 8, .n_depth = 500}, 1, 64 << 20);
      ASSERT_TRUE(row.ok()) << row.status();
      EXPECT_NEAR(row->positions_per_entry, compression, 0.2 * compression);
      if (compression == 1) continue;
      HostPool pool(64 << 20);
      SequenceCache cache(&(*model)->layout(), &pool);
      const auto ids = std::span(tokens_).first(400);
      ASSERT_TRUE(Prefill(model->get(), &cache, ids).ok());
      std::vector<int> lengths;
      for (int i = 0; i < 6 * 4; ++i) lengths.push_back(cache.head(i / 4, i % 4).n_entries());
      const auto [least, most] = std::ranges::minmax(lengths);
      EXPECT_GT(most, least * 5 / 4);
    }
  }
  auto loaded = ModelWeights::Load(config, DType::kBf16, MakeRandomSource(3),
                                   MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(loaded.ok());
  const std::shared_ptr<ModelWeights> weights = *std::move(loaded);
  for (const double compression : {0.5, 65.0, std::nan("")}) {
    EXPECT_EQ(DecideAtRandom(compression, {}, weights).code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(QualityTest, BenchModelKnowsWhatMemoryAndProductsAllow) {
  auto model = Make(-1);
  constexpr double kWeights = 64 * (128 + 2 * (192 + 3 * 96 + 3 * 64));
  const auto limit_of = [&](const ModelBenchCase& test, double flops) {
    auto row = BenchModel(model.get(), "none", test, 1, 64 << 20,
                          StepLimits{.read_bytes_per_s = 1e9, .gemm_flops = flops});
    EXPECT_TRUE(row.ok()) << row.status();
    const double seconds = test.n_parallel / row->limit_ts;
    return 1e9 * seconds - static_cast<double>(row->kv_bytes);
  };
  const ModelBenchCase test = {.n_gen = 2, .n_depth = 70, .n_parallel = 3};
  EXPECT_NEAR(limit_of(test, 1e12), 4 * kWeights, 1);   // reads
  EXPECT_NEAR(limit_of(test, 1e8), 60 * kWeights, 10);  // multiplies
  auto prompt = BenchModel(model.get(), "none", {.n_prompt = 9}, 1, 64 << 20,
                           StepLimits{.read_bytes_per_s = 1e9, .gemm_flops = 1e9});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->limit_ts, 0);
}

}  // namespace
}  // namespace kvlathe
