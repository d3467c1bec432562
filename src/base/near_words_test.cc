#include "base/near_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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

TEST(NearWords, HasTheNearestFirstAndNoMoreThanAskedFor) {
  const std::vector<std::string> names = {"qwen2", "qwen35", "glm4", "deepseek-v3", "smollm"};
  EXPECT_THAT(NearWords("qwen3", names, 5), ElementsAre("qwen2", "qwen35"));
  EXPECT_THAT(NearWords("qwen3", names, 1), ElementsAre("qwen2"));
  EXPECT_THAT(NearWords("deepseek-v4", names, 5), ElementsAre("deepseek-v3"));
  EXPECT_THAT(NearWords("deepseek", names, 5), ElementsAre("deepseek-v3"));
  EXPECT_THAT(NearWords("gemma", names, 5), IsEmpty());
  EXPECT_THAT(NearWords("", names, 5), IsEmpty());
}

}  // namespace
}  // namespace kvlathe
