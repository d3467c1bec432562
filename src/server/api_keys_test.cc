#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

http::Request RequestWith(const std::string& header, const std::string& value) {
  http::Request request;
  request.headers[header] = value;
  return request;
}

TEST(ApiKeysTest, WithoutKeysEverybodyMay) {
  EXPECT_TRUE(ApiKeys({}).Allow({}));
  EXPECT_FALSE(ApiKeys({}).are_required());
}

TEST(ApiKeysTest, TakesEachOfItsKeysInBothHeaders) {
  const ApiKeys keys({"first", "second"});
  EXPECT_TRUE(keys.Allow(RequestWith("authorization", "Bearer first")));
  EXPECT_TRUE(keys.Allow(RequestWith("authorization", "bearer  second ")));
  EXPECT_TRUE(keys.Allow(RequestWith("x-api-key", "second")));
}

TEST(ApiKeysTest, RefusesWhatIsNoKey) {
  const ApiKeys keys({"first", "second"});
  for (const char* given : {"", "Bearer", "Bearer ", "Bearer firs", "Bearer firstt", "Bearer FIRST",
                            "first", "Basic first", "Bearer first,second"}) {
    EXPECT_FALSE(keys.Allow(RequestWith("authorization", given))) << given;
  }
  EXPECT_FALSE(keys.Allow({}));
  EXPECT_FALSE(keys.Allow(RequestWith("x-api-key", "")));
}

TEST(ParseApiKeysTest, ReadsAKeyALine) {
  const auto keys = ParseApiKeys("# of the team\nabc\n\n  def \r\n", "keys.txt");
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(*keys, ElementsAre("abc", "def"));
}

TEST(ParseApiKeysTest, RefusesNoneAndWhatNoHeaderCarries) {
  EXPECT_THAT(MessageOf(ParseApiKeys("# none\n", "keys.txt").status()), HasSubstr("keys.txt"));
  EXPECT_THAT(MessageOf(ParseApiKeys("ab c", "keys.txt").status()), HasSubstr("API key 1"));
  EXPECT_FALSE(ParseApiKeys("sch\xc3\xb6n", "keys.txt").ok());
}

}  // namespace
}  // namespace kvlathe::server
