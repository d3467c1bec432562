#include "kvlathe/suggestions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

const std::vector<std::string> kVerbs = {"run", "chat", "compare", "calibrate", "eval"};

TEST(NearestOf, FindsAWordWithALetterWrongMissingOrSwapped) {
  EXPECT_THAT(NearestOf("campare", kVerbs), Optional(std::string("compare")));
  EXPECT_THAT(NearestOf("calibrat", kVerbs), Optional(std::string("calibrate")));
  EXPECT_THAT(NearestOf("chta", kVerbs), Optional(std::string("chat")));
  EXPECT_THAT(NearestOf("rum", kVerbs), Optional(std::string("run")));
}

TEST(NearestOf, FindsNothingFarAway) {
  EXPECT_EQ(NearestOf("generate", kVerbs), std::nullopt);
  EXPECT_EQ(NearestOf("", kVerbs), std::nullopt);
}

TEST(NameHere, KnowsOptionsOfOtherPrograms) {
  EXPECT_THAT(NameHere("--n-predict"), Optional(HasSubstr("--max-tokens")));
  EXPECT_THAT(NameHere("-ctk"), Optional(HasSubstr("--kv")));
  EXPECT_THAT(NameHere("-ngl"), Optional(HasSubstr("CPU")));
  EXPECT_EQ(NameHere("--kv"), std::nullopt);
}

}  // namespace
}  // namespace kvlathe
