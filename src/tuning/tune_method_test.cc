#include "tuning/tune_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TuneMethod Method(std::string_view text) {
  const StatusOr<TuneMethod> method = ParseMethod(text, 0.99);
  EXPECT_TRUE(method.ok()) << text << ": " << method.status();
  return method.ok() ? *method : TuneMethod();
}

std::vector<std::string> KeysOf(const std::vector<Ladder>& ladders) {
  std::vector<std::string> keys;
  for (const Ladder& ladder : ladders) keys.emplace_back(ladder.key->name);
  return keys;
}

TEST(ParseMethodTest, WhatIsNotGivenIsOpen) {
  const TuneMethod method = Method("fdc(ranks=uniform)+kivi(group=64)");
  EXPECT_EQ(method.name, "fdc(ranks=uniform)+kivi(group=64)");
  EXPECT_EQ(method.question,
            *Spec::Parse("fdc(accuracy=0.99,ranks=uniform)+kivi(accuracy=0.99,group=64)"));
  ASSERT_EQ(method.alternatives.size(), 1u);
  EXPECT_THAT(KeysOf(method.alternatives[0]), ElementsAre("bits", "rate"));  // the longest last
  EXPECT_THAT(method.alternatives[0][0].values, ElementsAre(8, 4, 3, 2));
  EXPECT_EQ(FillIn(method, method.alternatives[0], std::vector<double>{3, 0.37}),
            "fdc(rate=0.37,ranks=uniform)+kivi(bits=3,group=64)");
}

TEST(ParseMethodTest, WhatIsGivenIsFixed) {
  const TuneMethod method = Method("fdc+kivi(bits=2)");
  EXPECT_EQ(method.name, "fdc+kivi(bits=2)");
  EXPECT_EQ(method.question, *Spec::Parse("fdc(accuracy=0.99)+kivi(bits=2)"));
  EXPECT_THAT(KeysOf(method.alternatives[0]), ElementsAre("rate"));
  const TuneMethod fixed = Method("kivi(bits=2)+sparse");
  ASSERT_EQ(fixed.alternatives.size(), 1u);
  EXPECT_TRUE(fixed.alternatives[0].empty());
  EXPECT_EQ(FillIn(fixed, {}, {}), "kivi(bits=2)+sparse");
  EXPECT_EQ(FillIn(Method("none"), {}, {}), "none");
}

TEST(ParseMethodTest, LatheAloneAlsoTriesRatios) {
  const TuneMethod alone = Method("lathe+h2o");
  ASSERT_EQ(alone.alternatives.size(), 2u);
  EXPECT_THAT(KeysOf(alone.alternatives[0]), ElementsAre("keep", "ratio"));
  EXPECT_THAT(KeysOf(alone.alternatives[1]), ElementsAre("keep", "rate"));
  EXPECT_EQ(Method("lathe+kivi").alternatives.size(), 1u);
}

TEST(ParseMethodTest, PresetsAreOpenAsAWhole) {
  const TuneMethod gear = Method("gear");
  EXPECT_EQ(gear.question.ToString(), "gear(accuracy=0.99)");
  EXPECT_EQ(FillIn(gear, gear.alternatives[0], std::vector<double>{2}), "gear(bits=2)");
  const TuneMethod kvq = Method("kvq-f(bits=2)");
  EXPECT_THAT(KeysOf(kvq.alternatives[0]), ElementsAre("rate"));
  EXPECT_EQ(FillIn(kvq, kvq.alternatives[0], std::vector<double>{0.25}), "kvq-f(rate=0.25,bits=2)");
}

// Whatever stage takes `accuracy` has values to choose from, from weak to strong, and every filled
// spec parses.
TEST(ParseMethodTest, EveryStageThatTakesAccuracyHasALadder) {
  for (const StageInfo& stage : AllStages()) {
    if (stage.FindKey("accuracy") == nullptr) continue;
    const TuneMethod method = Method(stage.name);
    ASSERT_FALSE(method.alternatives.empty()) << stage.name;
    for (const std::vector<Ladder>& ladders : method.alternatives) {
      ASSERT_EQ(ladders.size(), 1u) << stage.name;
      const Ladder& ladder = ladders[0];
      ASSERT_GE(ladder.values.size(), 2u) << stage.name;
      const bool grows = ladder.values[1] > ladder.values[0];
      const std::string_view key = ladder.key->name;
      EXPECT_EQ(grows, key == "rate" || key == "ratio" || key == "n") << stage.name;
      for (size_t i = 0; i < ladder.values.size(); ++i) {
        if (i > 0) {
          EXPECT_EQ(ladder.values[i] > ladder.values[i - 1], grows) << stage.name;
        }
        const std::string text = FillIn(method, ladders, {&ladder.values[i], 1});
        const StatusOr<Spec> spec = Spec::Parse(text);
        ASSERT_TRUE(spec.ok()) << spec.status();
        EXPECT_FALSE(spec->accuracy().has_value());
        EXPECT_EQ(ShortText(*Spec::Parse(text), false).empty(), false);
      }
    }
  }
}

TEST(ParseMethodTest, ShortTextParsesBackToTheSameSpec) {
  for (const char* text :
       {"none", "fdc(rate=0.41,sink=0)+kivi(bits=2,run=prompt)", "h2o(keep=0.2,recent=0.1)",
        "tova(budget=512)", "h2o(keep=0.4,budget=prompt)", "gear(bits=2,share=0.05)", "kf-f",
        "gear(accuracy=0.9)", "fdc(accuracy=0.99)+int8"}) {
    const Spec spec = *Spec::Parse(text);
    const StatusOr<Spec> again = Spec::Parse(ShortText(spec, false));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, spec) << text;
  }
}

TEST(ParseMethodTest, RefusesATargetOfItsOwn) {
  EXPECT_THAT(ParseMethod("fdc(accuracy=0.9)", 0.99).status().message(), HasSubstr("--accuracy"));
  EXPECT_TRUE(ParseMethod("fdc(accuracy=0.99)", 0.99).ok());
  EXPECT_EQ(ParseMethod("fcd", 0.99).status().code(), StatusCode::kInvalidArgument);
}

TEST(CheckMethodSupportedTest, AsTheSpecItBecomes) {
  EXPECT_TRUE(CheckMethodSupported(Method("gear")).ok());
  EXPECT_TRUE(CheckMethodSupported(Method("kvq-f")).ok());
  EXPECT_FALSE(CheckMethodSupported(Method("h2o+kvquant")).ok());
  EXPECT_TRUE(CheckMethodSupported(Method("lathe(bits=mixed)+lowrank")).ok());  // as a ratio
  for (const auto& [name, axis] : DefaultMethods()) {
    EXPECT_TRUE(ParseMethod(name, 0.99).ok()) << name;
  }
}

}  // namespace
}  // namespace kvlathe
