#include "tuning/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tuning/fake_evaluator.h"

namespace kvlathe {
namespace {

struct Outcome {
  std::optional<TunePoint> best;
  Profile profile;
};

Outcome SearchFor(std::string_view text, FakeEvaluator* evaluator, double accuracy = 0.99) {
  Outcome outcome{{}, OneGoalProfile()};
  PointRecorder recorder(evaluator, &outcome.profile, [](const Profile&) { return OkStatus(); });
  EXPECT_TRUE(recorder.Baseline().ok());
  const StatusOr<TuneMethod> method = ParseMethod(text, accuracy);
  EXPECT_TRUE(method.ok()) << method.status();
  const auto best = SearchMethod(*method, accuracy, &recorder);
  EXPECT_TRUE(best.ok()) << best.status();
  outcome.best = *best;
  return outcome;
}

bool Has(const Stage& stage, std::string_view key) { return KeyValues(stage.values).Has(key); }
double Number(const Stage& stage, std::string_view key) {
  return KeyValues(stage.values).Number(key);
}

// The stage's loss is a table of its rate in percent, 0 above its end.
auto LossByPercent(std::vector<double> loss) {
  return [loss = std::move(loss)](const Stage& stage) {
    if (!Has(stage, "rate")) return 0.0;
    const auto percent = static_cast<size_t>(std::lround(100 * Number(stage, "rate")));
    return percent < loss.size() ? loss[percent] : 0.0;
  };
}

TEST(SearchTest, FindsTheLastRateThatKeepsTheAccuracy) {
  FakeEvaluator evaluator;
  for (int last = 0; last <= 95; ++last) {
    evaluator.loss = [last](const Stage& stage) {
      return Number(stage, "rate") > (last + 0.5) / 100 ? 0.02 : 0.0;
    };
    evaluator.measured.clear();
    const Outcome outcome = SearchFor("fdc", &evaluator);
    if (last == 0) {  // rate 0 is no smaller than no compression
      EXPECT_FALSE(outcome.best.has_value());
      continue;
    }
    ASSERT_TRUE(outcome.best.has_value());
    EXPECT_EQ(outcome.best->kv, fmt::format("fdc(rate={})", last / 100.0));
    EXPECT_LE(evaluator.measured.size(), 1u + 7u);  // none, and log2 of 95 rates
  }
}

// What is expected decides how much is measured, and not what is found.
TEST(SearchTest, MeasuresFirstWhereTheAccuracyIsExpectedToEnd) {
  FakeEvaluator evaluator;
  for (int last = 1; last <= 95; ++last) {
    evaluator.loss = [last](const Stage& stage) {
      return Number(stage, "rate") > (last + 0.5) / 100 ? 0.02 : 0.0;
    };
    for (const int off : {0, 1, -1, 10, -30}) {
      evaluator.expected = [&](const Spec& spec) {
        const double rate = Number(*spec.stage(Axis::kBasis), "rate");
        return rate > (last + off + 0.5) / 100 ? 0.5 : 1.0;
      };
      evaluator.measured.clear();
      const Outcome outcome = SearchFor("fdc", &evaluator);
      ASSERT_TRUE(outcome.best.has_value());
      EXPECT_EQ(outcome.best->kv, fmt::format("fdc(rate={})", last / 100.0)) << off;
      const size_t most = std::abs(off) <= 1 ? 5 : 13;  // with none
      EXPECT_LE(evaluator.measured.size(), most) << last << " " << off;
    }
  }
}

// Rounding ranks makes neighbouring rates the same cache: of those only the weakest is tried.
TEST(SearchTest, ValuesOfOneSizeAreOne) {
  struct Rounded : FakeEvaluator {
    StatusOr<double> Size(const std::string& kv) override {
      KVL_ASSIGN_OR_RETURN(const double size, FakeEvaluator::Size(kv));
      return size_of_none * std::ceil(8 * size / size_of_none - 1e-9) / 8;
    }
  } evaluator;
  const Outcome outcome = SearchFor("fdc", &evaluator, 0.985);
  ASSERT_TRUE(outcome.best.has_value());
  std::set<double> sizes;
  for (const TunePoint& point : outcome.profile.points) {
    EXPECT_TRUE(sizes.insert(point.kv_fraction).second) << point.kv;
  }
  // Losses are 0.05 rate^2, so rates to 0.547 pass; the first that leaves 4 of 8 parts is 0.5.
  EXPECT_EQ(outcome.best->kv, "fdc(rate=0.5)");
}

// Whatever the curve: the result was measured, passes, and no measured point that passes is
// smaller.
TEST(SearchTest, WithoutMonotonyTheResultIsStillMeasured) {
  uint64_t state = 1;
  const auto draw = [&] {
    return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33;
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> loss(96);
    for (double& l : loss) l = draw() % 2 == 0 ? 0.0 : 0.02;
    FakeEvaluator evaluator;
    evaluator.loss = LossByPercent(loss);
    const Outcome outcome = SearchFor("fdc", &evaluator);
    double smallest = INFINITY;
    for (const TunePoint& point : outcome.profile.points) {
      if (point.kv != "none" && outcome.profile.AccuracyOf(point) >= 0.99) {
        smallest = std::min(smallest, point.kv_fraction);
      }
    }
    EXPECT_EQ(outcome.best.has_value(), smallest < INFINITY);
    if (!outcome.best.has_value()) continue;
    EXPECT_EQ(outcome.best->kv_fraction, smallest);
    EXPECT_GE(outcome.profile.AccuracyOf(*outcome.best), 0.99);
    EXPECT_THAT(evaluator.measured, testing::Contains(outcome.best->kv));
    EXPECT_LE(evaluator.measured.size(), 8u);
  }
}

TEST(SearchTest, AnAccuracyThatIsJustKeptPasses) {
  FakeEvaluator evaluator;
  evaluator.loss = [](const Stage& stage) { return Has(stage, "rate") ? 0.01 : 0.0; };
  const Outcome outcome = SearchFor("fdc", &evaluator, 0.99);
  ASSERT_TRUE(outcome.best.has_value());
  EXPECT_EQ(outcome.best->kv, "fdc(rate=0.95)");
}

TEST(SearchTest, ValuesOutOfReachAreLeftOut) {
  FakeEvaluator evaluator;
  evaluator.loss = [](const Stage&) { return 0.0; };
  const Outcome outcome = SearchFor("lathe", &evaluator);
  ASSERT_TRUE(outcome.best.has_value());
  EXPECT_LT(outcome.best->kv_fraction, 1.05 * 0.05 + 1e-9);  // a rate of 0.95 beats a ratio of 12
  for (const std::string& kv : evaluator.measured) {
    const Spec spec = *Spec::Parse(kv);
    if (spec.basis() != nullptr && RanksOf(*spec.basis())->has_ratio()) {
      EXPECT_LE(RanksOf(*spec.basis())->value, 12);
    }
  }
}

TEST(SearchTest, AlternativesThatDoNotFitAreLeftOut) {
  FakeEvaluator evaluator;
  evaluator.loss = [](const Stage&) { return 0.0; };
  const Outcome outcome = SearchFor("lathe+lowrank", &evaluator);
  ASSERT_TRUE(outcome.best.has_value());
  EXPECT_TRUE(RanksOf(*Spec::Parse(outcome.best->kv)->basis())->has_ratio());
}

// Against trying everything, where losses grow with compression: the rows of the first ladder that
// the search looks at, with every value of the second.
TEST(SearchTest, CompositionsFindTheBestOfTheirRows) {
  FakeEvaluator evaluator;
  evaluator.loss = [](const Stage& stage) {
    if (Has(stage, "bits")) return 0.02 / Number(stage, "bits");
    return 0.03 * Number(stage, "rate") * Number(stage, "rate");
  };
  const Outcome outcome = SearchFor("fdc+kivi", &evaluator);
  ASSERT_TRUE(outcome.best.has_value());
  double smallest = INFINITY;
  for (int bits : {4, 3, 2}) {
    for (int percent = 0; percent <= 95; ++percent) {
      const double rate = percent / 100.0;
      if (0.02 / bits + 0.03 * rate * rate > 0.01) continue;
      smallest = std::min(smallest, 1.05 * (1 - rate) * bits / 16);
    }
  }
  EXPECT_NEAR(outcome.best->kv_fraction, smallest, 1e-12);
  EXPECT_LE(evaluator.measured.size(), 1u + 2u + 3u * 7u);
}

TEST(SearchTest, ThreeLaddersStayAffordable) {
  FakeEvaluator evaluator;
  evaluator.loss = [](const Stage& stage) {
    const double removed = 1 - FakeEvaluator::Left(stage);
    return 0.008 * removed * removed;
  };
  const Outcome outcome = SearchFor("fdc+h2o+kivi", &evaluator);
  ASSERT_TRUE(outcome.best.has_value());
  const Spec best = *Spec::Parse(outcome.best->kv);
  EXPECT_NE(best.basis(), nullptr);
  EXPECT_NE(best.quantizer(), nullptr);
  EXPECT_LE(evaluator.measured.size(), 100u);
  // Smaller than what any two of the three reach alone.
  FakeEvaluator other = evaluator;
  EXPECT_LT(outcome.best->kv_fraction, SearchFor("fdc+kivi", &other).best->kv_fraction);
}

// Whatever is cut short, the search finds the same, and measures as often.
TEST(SearchTest, GivingUpEarlyChangesNothing) {
  for (const char* text : {"fdc", "lathe", "fdc+kivi", "fdc+h2o+kivi"}) {
    FakeEvaluator whole, cutting;
    whole.loss = cutting.loss = [](const Stage& stage) {
      const double removed = 1 - FakeEvaluator::Left(stage);
      return 0.012 * removed * removed;
    };
    cutting.cuts_short = true;
    const Outcome expected = SearchFor(text, &whole), outcome = SearchFor(text, &cutting);
    ASSERT_TRUE(outcome.best.has_value()) << text;
    EXPECT_EQ(outcome.best->kv, expected.best->kv) << text;
    EXPECT_FALSE(outcome.best->is_cut_short) << text;
    EXPECT_EQ(cutting.measured, whole.measured) << text;
    EXPECT_TRUE(std::ranges::any_of(outcome.profile.points, &TunePoint::is_cut_short)) << text;
  }
}

// A point that was given up for one accuracy is measured again where it might keep a lower one.
TEST(SearchTest, ACutPointCountsOnlyWhereItFails) {
  FakeEvaluator evaluator;
  evaluator.cuts_short = true;
  evaluator.loss = [](const Stage& stage) { return Has(stage, "bits") ? 0.04 : 0.0; };
  Profile profile = OneGoalProfile();
  PointRecorder recorder(&evaluator, &profile, [](const Profile&) { return OkStatus(); });
  ASSERT_TRUE(recorder.Baseline().ok());
  // Loses 0.04, but was given up where (0.96 + 2 * 0.99) / 3 = 0.98 was still possible.
  EXPECT_TRUE(recorder.PointOf("kivi(bits=2)", 0.99)->is_cut_short);
  EXPECT_NEAR(profile.AccuracyOf(profile.points[1]), 0.98, 1e-6);
  EXPECT_TRUE(recorder.PointOf("kivi(bits=2)", 0.985)->is_cut_short);
  EXPECT_EQ(evaluator.measured.size(), 2u);
  const TunePoint again = *recorder.PointOf("kivi(bits=2)", 0.95);
  EXPECT_FALSE(again.is_cut_short);
  EXPECT_EQ(evaluator.measured.size(), 3u);
  EXPECT_EQ(profile.points.size(), 2u);  // in its old place
  EXPECT_NEAR(profile.AccuracyOf(profile.points[1]), 0.96, 1e-12);
  EXPECT_FALSE(recorder.PointOf("kivi(bits=2)", 0.99)->is_cut_short);
  EXPECT_EQ(evaluator.measured.size(), 3u);
}

TEST(SearchTest, LimitsAreThoseOfTheGoals) {
  struct Listener : FakeEvaluator {
    std::vector<double> heard;
    StatusOr<Measurement> Measure(const std::string& kv, std::span<const double> limits) override {
      heard.assign(limits.begin(), limits.end());
      KVL_ASSIGN_OR_RETURN(Measurement result, FakeEvaluator::Measure(kv, {}));
      result.scores.push_back({20, 0, 1});
      return result;
    }
  } evaluator;
  Profile profile = OneGoalProfile();
  profile.goals.push_back({"perplexity novel.txt", "perplexity", "4096 tokens"});
  PointRecorder recorder(&evaluator, &profile, [](const Profile&) { return OkStatus(); });
  ASSERT_TRUE(recorder.Baseline().ok());
  EXPECT_TRUE(evaluator.heard.empty());
  ASSERT_TRUE(recorder.PointOf("int8", 0.9).ok());
  ASSERT_EQ(evaluator.heard.size(), 2u);
  EXPECT_NEAR(evaluator.heard[0], 0.8 * 0.9, 1e-9);
  EXPECT_NEAR(evaluator.heard[1], 20 / 0.9, 1e-9);
}

TEST(SearchTest, NothingToChooseIsMeasuredOnce) {
  FakeEvaluator evaluator;
  EXPECT_TRUE(SearchFor("kivi(bits=8)", &evaluator, 0.9).best.has_value());
  EXPECT_EQ(evaluator.measured.size(), 2u);
  evaluator.loss = [](const Stage&) { return 0.5; };
  EXPECT_FALSE(SearchFor("kivi(bits=8)", &evaluator, 0.9).best.has_value());
}

TEST(SearchTest, ErrorsOfTheModelEndIt) {
  FakeEvaluator evaluator;
  evaluator.fails_after = 3;
  Profile profile = OneGoalProfile();
  PointRecorder recorder(&evaluator, &profile, [](const Profile&) { return OkStatus(); });
  ASSERT_TRUE(recorder.Baseline().ok());
  EXPECT_EQ(SearchMethod(*ParseMethod("fdc", 0.99), 0.99, &recorder).status().code(),
            StatusCode::kInternal);
  EXPECT_EQ(profile.points.size(), 3u);
}

}  // namespace
}  // namespace kvlathe
