#include "server/api/json_entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace kvlathe::api {
namespace {

using ::testing::HasSubstr;

std::string Repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

std::string ErrorOf(const std::string& body, const JsonBounds& bounds = {}) {
  const auto json = ParseJsonObject(body, bounds);
  EXPECT_FALSE(json.ok()) << body.substr(0, 100);
  EXPECT_EQ(json.status().code(), StatusCode::kInvalidArgument);
  return MessageOf(json.status());
}

TEST(JsonEntry, KeepsTheOrderOfKeys) {
  const auto json = ParseJsonObject(R"({"z": 1, "a": {"y": 2, "b": [3, null]}})", {});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"z":1,"a":{"y":2,"b":[3,null]}})");
}

TEST(JsonEntry, RefusesWhatIsNoObject) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("the body is empty"));
  EXPECT_THAT(ErrorOf(" \n"), HasSubstr("the body is empty"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("the body is a JSON array"));
  EXPECT_THAT(ErrorOf("null"), HasSubstr("the body is a JSON null"));
}

TEST(JsonEntry, RefusesWhatIsNotJson) {
  for (const std::string body :
       {R"({"a": 1)", R"({"a": NaN})", R"({"a": Infinity})", R"({"a": 01})", R"({'a': 1})",
        R"({"a": 1,})", R"({"a": 1} x)", R"({"a": 1e999})", "{\"a\": \"\x01\"}",
        R"({"a": // no
1})"}) {
    EXPECT_THAT(ErrorOf(body), HasSubstr("not valid JSON at byte")) << body;
  }
}

TEST(JsonEntry, RefusesTextThatIsNotUnicode) {
  for (const std::string text : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                 R"(\ud800)", R"(\udc00)", R"(\ud800\ud800)", R"(\u12)"}) {
    EXPECT_THAT(ErrorOf("{\"a\": \"" + text + "\"}"), HasSubstr("not valid JSON")) << text;
  }
  const auto whole = ParseJsonObject(R"({"a": "\ud83d\ude00\u0000"})", {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)["a"], std::string("\xF0\x9F\x98\x80\0", 5));
}

TEST(JsonEntry, RefusesAKeyThatIsThereTwice) {
  EXPECT_THAT(ErrorOf(R"({"n": 1, "n": 2})"), HasSubstr("the key 'n' is twice in one object"));
  EXPECT_THAT(ErrorOf(R"({"a": [{"b": {"n": 1, "n": 1}}]})"), HasSubstr("'n'"));
  EXPECT_TRUE(ParseJsonObject(R"({"n": {"n": 1}, "m": [{"n": 1}, {"n": 1}]})", {}).ok());
}

TEST(JsonEntry, BoundsDepth) {
  const JsonBounds bounds{.max_depth = 5};
  const auto nested = [](int depth) {
    return R"({"a": )" + Repeated("[", depth - 1) + Repeated("]", depth - 1) + "}";
  };
  EXPECT_TRUE(ParseJsonObject(nested(5), bounds).ok());
  EXPECT_THAT(ErrorOf(nested(6), bounds), HasSubstr("more than 5 deep"));
  // Far more than a stack could hold, and never closed.
  EXPECT_THAT(ErrorOf(Repeated("[", 1000000)), HasSubstr("more than 64 deep"));
  EXPECT_THAT(ErrorOf(Repeated(R"({"a":)", 1000000)), HasSubstr("more than 64 deep"));
}

TEST(JsonEntry, BoundsValuesAndKeys) {
  const std::string many = R"({"a": [)" + Repeated("1,", 50) + "1]}";
  EXPECT_TRUE(ParseJsonObject(many, {.max_values = 53}).ok());
  EXPECT_THAT(ErrorOf(many, {.max_values = 52}), HasSubstr("more than 52 values"));
  std::string keys;
  for (int i = 0; i < 10; ++i) keys += fmt::format("{}\"k{}\": 0", i == 0 ? "" : ",", i);
  EXPECT_TRUE(ParseJsonObject("{" + keys + "}", {.max_object_keys = 10}).ok());
  EXPECT_THAT(ErrorOf("{" + keys + "}", {.max_object_keys = 9}), HasSubstr("more than 9 keys"));
}

}  // namespace
}  // namespace kvlathe::api
