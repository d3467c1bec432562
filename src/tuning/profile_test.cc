#include "tuning/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TunePoint Point(std::string kv, double kv_fraction, double score, double perplexity,
                double tbt_ms) {
  const std::string resolved = Spec::Parse(kv)->ToString();
  return {std::move(kv), resolved, kv_fraction, {{score, 0.01, 0.5}, {perplexity, 0, 0.5}}, tbt_ms};
}

Profile SmallProfile() {
  Profile profile{"0123", "context 1024, bf16", {}, {}, {}};
  profile.goals = {{"passkey", "exact_match", "100 examples"},
                   {"perplexity novel.txt", "perplexity", "4096 tokens"}};
  profile.points = {Point("none", 1.02, 0.8, 10, 1.0), Point("fdc(rate=0.4)", 0.6, 0.8, 10.1, 1.0),
                    Point("kivi(bits=2)", 0.2, 0.4, 10.2, 1.0)};
  profile.targets = {{0.99,
                      {{"fdc", Spec::Parse("fdc(accuracy=0.99)")->ToString(), "fdc(rate=0.4)"},
                       {"kivi", Spec::Parse("kivi(accuracy=0.99)")->ToString(), ""}}}};
  return profile;
}

TEST(ProfileTest, AccuracyIsTheWorstOfAllGoals) {
  Profile profile = SmallProfile();
  EXPECT_EQ(profile.AccuracyOf(profile.points[0]), 1);
  EXPECT_DOUBLE_EQ(profile.AccuracyOf(profile.points[1]), 10 / 10.1);
  EXPECT_DOUBLE_EQ(profile.AccuracyOf(profile.points[2]), 0.5);
  profile.points[0].scores[0].value = 0;
  EXPECT_EQ(profile.AccuracyOf(profile.points[0]), 0);
  EXPECT_EQ(profile.AccuracyOf(profile.points[2]), 0);
}

TEST(ProfileTest, FileHoldsEverything) {
  const ScratchFolder folder;
  const Profile profile = SmallProfile();
  ASSERT_TRUE(WriteProfile(profile, folder / "p.json").ok());
  const StatusOr<Profile> read = ReadProfile(folder / "p.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), ToJson(profile));
  EXPECT_EQ(read->goals, profile.goals);
  EXPECT_EQ(folder.n_files(), 1);
}

TEST(ProfileTest, APointThatWasCutShortHasNoTimeAndIsNotOnTheFront) {
  Profile profile = SmallProfile();
  TunePoint& cut = profile.points.emplace_back(Point("fdc(rate=0.9)", 0.1, 0.78, 0, 0));
  cut.scores.resize(1);
  cut.is_cut_short = true;
  EXPECT_DOUBLE_EQ(profile.AccuracyOf(cut), 0.78 / 0.8);
  EXPECT_THAT(ParetoFront(profile), ElementsAre(2, 1, 0));
  const nlohmann::ordered_json json = ToJson(profile);
  EXPECT_EQ(json["points"][3]["cut_short"], true);
  EXPECT_FALSE(json["points"][3].contains("tbt_ms"));
  EXPECT_FALSE(json["points"][2].contains("cut_short"));
  const StatusOr<Profile> read = ProfileFromJson(json, "p");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), json);
  // Neither without any score, nor as the baseline.
  nlohmann::json damaged = json;
  damaged["points"][3]["scores"].clear();
  EXPECT_EQ(ProfileFromJson(damaged, "p").status().code(), StatusCode::kDataLoss);
  damaged = json;
  damaged["points"][0]["cut_short"] = true;
  EXPECT_EQ(ProfileFromJson(damaged, "p").status().code(), StatusCode::kDataLoss);
}

TEST(ProfileTest, RefusesWhatTuneDidNotWrite) {
  const ScratchFolder folder;
  EXPECT_EQ(ReadProfile(folder / "missing.json").status().code(), StatusCode::kNotFound);
  const std::string good = ToJson(SmallProfile()).dump();
  const std::pair<const char*, const char*> kChanges[] = {
      {"kvlathe-profile", "other"},
      {"\"version\":1", "\"version\":2"},
      {"\"kv_fraction\"", "\"fraction\""},
      {"\"scores\":[{", "\"scores\":[1,{"},
      {"0.99", "\"0.99\""},
      {"\"targets\"", "\"target\""},
  };
  for (const auto& [from, to] : kChanges) {
    std::string text = good;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
         at += std::string_view(to).size()) {
      text.replace(at, std::string_view(from).size(), to);
    }
    ASSERT_NE(text, good) << from;
    ASSERT_TRUE(WriteFileAtomically(folder / "p.json", text).ok());
    const Status status = ReadProfile(folder / "p.json").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << from;
    EXPECT_THAT(std::string(status.message()), HasSubstr("p.json")) << from;
  }
  nlohmann::json without_score = ToJson(SmallProfile());
  without_score["points"][1]["scores"].erase(0);
  EXPECT_EQ(ProfileFromJson(without_score, "p").status().code(), StatusCode::kDataLoss);
  nlohmann::json without_baseline = ToJson(SmallProfile());
  without_baseline["points"].erase(0);
  EXPECT_EQ(ProfileFromJson(without_baseline, "p").status().code(), StatusCode::kDataLoss);
}

TEST(ProfileTest, RefusesAFileThatWasChangedUnlessItsChecksumIsTakenOut) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteProfile(SmallProfile(), folder / "p.json").ok());
  nlohmann::json json = nlohmann::json::parse(*ReadTextFile(folder / "p.json"));
  json["targets"][0]["accuracy"] = 0.5;
  ASSERT_TRUE(WriteFileAtomically(folder / "p.json", json.dump()).ok());
  const Status status = ReadProfile(folder / "p.json").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("crc32c"));
  json.erase("crc32c");
  ASSERT_TRUE(WriteFileAtomically(folder / "p.json", json.dump()).ok());
  EXPECT_TRUE(ReadProfile(folder / "p.json").ok());
}

TEST(AnswerTest, TakesThePlaceOfTheQuestion) {
  const Profile profile = SmallProfile();
  const auto answer = [&](const char* kv, const char* hash = "0123") {
    return Answer(profile, "p.json", *Spec::Parse(kv), "DIR", hash);
  };
  const StatusOr<Spec> found = answer("fdc(sink=4,accuracy=0.99)");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, *Spec::Parse("fdc(rate=0.4)"));
  EXPECT_EQ(found->text(), "fdc(sink=4,accuracy=0.99)");

  // What a later build tuned does not stand in the way.
  Profile newer = profile;
  newer.targets[0].methods.insert(newer.targets[0].methods.begin(),
                                  {"later", "later(accuracy=0.99)", "later(rate=0.5)"});
  EXPECT_TRUE(Answer(newer, "p.json", *Spec::Parse("fdc(accuracy=0.99)"), "DIR", "0123").ok());

  const auto message = [&](const StatusOr<Spec>& result) {
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(message(answer("fdc(accuracy=0.95)")),
              testing::AllOf(HasSubstr("p.json holds fdc at 0.99"),
                             HasSubstr("run kvlathe tune -m DIR --accuracy 0.95 --kv 'fdc'")));
  EXPECT_THAT(message(answer("fdc(accuracy=0.99)+kivi(bits=2)")),
              HasSubstr("--kv 'fdc+kivi(bits=2)'"));
  EXPECT_THAT(message(answer("kivi(accuracy=0.99)")), HasSubstr("no setting of kivi"));
  EXPECT_THAT(message(answer("fdc(accuracy=0.99)", "4567")), HasSubstr("another model"));
}

TEST(ParetoFrontTest, KeepsWhatNothingBeats) {
  Profile profile = SmallProfile();
  EXPECT_THAT(ParetoFront(profile), ElementsAre(2, 1, 0));
  profile.points.push_back(Point("int8", 0.6, 0.79, 10.1, 1.0));           // less accurate
  profile.points.push_back(Point("fdc(rate=0.3)", 0.7, 0.8, 10.1, 0.98));  // not faster enough
  profile.points.push_back(Point("fdc(rate=0.2)", 0.8, 0.8, 10.1, 0.9));   // faster
  EXPECT_THAT(ParetoFront(profile), ElementsAre(2, 1, 5, 0));
  // Equal in everything: both stay.
  profile.points.push_back(Point("kivi(bits=2,run=64)", 0.2, 0.4, 10.2, 1.0));
  EXPECT_THAT(ParetoFront(profile), ElementsAre(2, 6, 1, 5, 0));
}

TEST(ProfileTest, TableSaysWhatWasFound) {
  const Profile profile = SmallProfile();
  const std::string table = ToTable(profile, profile.targets[0]);
  EXPECT_THAT(table, HasSubstr("fdc(rate=0.4)"));
  EXPECT_THAT(table, HasSubstr("60.00"));
  EXPECT_THAT(table, HasSubstr("none keeps 0.99"));
}

}  // namespace
}  // namespace kvlathe
