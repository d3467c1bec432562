#include "kvlathe/suggestions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(NameHere, KnowsOptionsOfOtherPrograms) {
  EXPECT_THAT(NameHere("--n-predict"), Optional(HasSubstr("--max-tokens")));
  EXPECT_THAT(NameHere("-ctk"), Optional(HasSubstr("--kv")));
  EXPECT_THAT(NameHere("-ngl"), Optional(HasSubstr("CPU")));
  EXPECT_EQ(NameHere("--kv"), std::nullopt);
}

}  // namespace
}  // namespace kvlathe
