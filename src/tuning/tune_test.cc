#include "tuning/tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tuning/fake_evaluator.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

TuneJob JobOf(FakeEvaluator* evaluator, std::vector<std::string> methods, std::string* saved) {
  TuneJob job;
  job.evaluator = evaluator;
  job.methods = std::move(methods);
  job.save = [saved](const Profile& profile) {
    *saved = ToJson(profile).dump();
    return OkStatus();
  };
  return job;
}

auto SquaresTimes(double factor) {
  return [factor](const Stage& stage) {
    const double removed = 1 - FakeEvaluator::Left(stage);
    return factor * removed * removed;
  };
}

TEST(TuneTest, DefaultsSearchEachMethodAndCompositionsOfTheBest) {
  FakeEvaluator evaluator;
  evaluator.loss = SquaresTimes(0.016);
  std::string saved;
  Profile profile = OneGoalProfile();
  ASSERT_TRUE(Tune(JobOf(&evaluator, {}, &saved), &profile).ok());
  ASSERT_EQ(profile.targets.size(), 1u);
  std::vector<std::string> names;
  for (const TunedMethod& method : profile.targets[0].methods) names.push_back(method.name);
  for (const char* name : {"lathe", "fdc", "zack", "h2o", "tova", "keyformer", "kivi", "kcvt",
                           "kvquant", "gear", "int8"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
  // Of equals the first of the list.
  EXPECT_THAT(names,
              testing::IsSupersetOf({"lathe+kivi", "h2o+kivi", "lathe+h2o", "lathe+h2o+kivi"}));
  EXPECT_EQ(nlohmann::ordered_json::parse(saved), ToJson(profile));
}

// The process ends after any number of measurements, and the same command goes on: the same
// profile in the end, and nothing measured twice.
TEST(TuneTest, GoesOnAfterAKillAtEveryPoint) {
  const std::vector<std::string> methods = {"fdc", "fdc+kivi", "gear"};
  FakeEvaluator whole;
  whole.cuts_short = true;
  whole.loss = SquaresTimes(0.016);
  std::string uninterrupted;
  Profile profile = OneGoalProfile();
  ASSERT_TRUE(Tune(JobOf(&whole, methods, &uninterrupted), &profile).ok());
  const int n_points = static_cast<int>(whole.measured.size());
  ASSERT_GT(n_points, 12);
  for (int n = 0; n < n_points; ++n) {
    FakeEvaluator killed;
    killed.loss = whole.loss;
    killed.cuts_short = true;
    killed.fails_after = n;
    std::string saved = ToJson(OneGoalProfile()).dump();
    profile = OneGoalProfile();
    EXPECT_EQ(Tune(JobOf(&killed, methods, &saved), &profile).code(), StatusCode::kInternal);

    const StatusOr<Profile> kept = ProfileFromJson(nlohmann::json::parse(saved), "kept");
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->points.size(), static_cast<size_t>(n));
    profile = *kept;
    FakeEvaluator second;
    second.loss = whole.loss;
    second.cuts_short = true;
    ASSERT_TRUE(Tune(JobOf(&second, methods, &saved), &profile).ok());
    EXPECT_EQ(saved, uninterrupted) << n;
    EXPECT_EQ(static_cast<int>(second.measured.size()), n_points - n);
  }
}

TEST(TuneTest, AnotherTargetUsesThePointsOfTheFirst) {
  FakeEvaluator evaluator;
  std::string saved;
  Profile profile = OneGoalProfile();
  TuneJob job = JobOf(&evaluator, {"fdc"}, &saved);
  ASSERT_TRUE(Tune(job, &profile).ok());
  const size_t n_first = evaluator.measured.size();
  job.accuracy = 0.95;
  ASSERT_TRUE(Tune(job, &profile).ok());
  EXPECT_LT(evaluator.measured.size(), n_first + 7);
  ASSERT_EQ(profile.targets.size(), 2u);
  EXPECT_NE(profile.targets[0].methods[0].kv, profile.targets[1].methods[0].kv);
  // Again: nothing to do.
  const std::string before = saved;
  ASSERT_TRUE(Tune(job, &profile).ok());
  EXPECT_EQ(saved, before);
}

TEST(TuneTest, RefusesBeforeItMeasures) {
  FakeEvaluator evaluator;
  std::string saved;
  Profile profile = OneGoalProfile();
  EXPECT_EQ(Tune(JobOf(&evaluator, {"fdc", "fcd"}, &saved), &profile).code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(Tune(JobOf(&evaluator, {"h2o+kvquant"}, &saved), &profile).ok());
  EXPECT_TRUE(evaluator.measured.empty());
  evaluator.baseline = 0;
  const Status status = Tune(JobOf(&evaluator, {"fdc"}, &saved), &profile);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("passkey"));
}

}  // namespace
}  // namespace kvlathe
