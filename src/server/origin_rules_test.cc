#include "server/origin_rules.h"

#include <gtest/gtest.h>

namespace kvlathe::server {
namespace {

http::Request With(const std::string& host, const std::string& origin = "") {
  http::Request request;
  request.method = "POST";
  if (!host.empty()) request.headers["host"] = host;
  if (!origin.empty()) request.headers["origin"] = origin;
  return request;
}

TEST(OriginRules, OnLoopbackOtherNamesAreRefused) {
  const OriginRules rules({}, "127.0.0.1", /*has_keys=*/false);
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "127.0.0.2",
                           "[::1]", "[::1]:8080", ""}) {
    EXPECT_FALSE(rules.WhyRefused(With(host))) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "10.0.0.1", "[::2]:8080", "127.evil.example", "evil.example:127.0.0.1"}) {
    const auto why = rules.WhyRefused(With(host));
    ASSERT_TRUE(why) << host;
    EXPECT_NE(why->find("--allow-host"), std::string::npos);
  }
  const OriginRules allows({.allowed_hosts = {"Chat.example"}}, "::1", false);
  EXPECT_FALSE(allows.WhyRefused(With("chat.EXAMPLE:80")));
  EXPECT_TRUE(allows.WhyRefused(With("evil.example")));
  EXPECT_FALSE(OriginRules({.allowed_hosts = {"*"}}, "::1", false).WhyRefused(With("any.example")));
}

TEST(OriginRules, OnLoopbackPagesOfOtherOriginsAreRefused) {
  const OriginRules rules({.cors_origins = {"https://chat.example"}}, "localhost", false);
  const std::string host = "127.0.0.1:8080";
  EXPECT_FALSE(rules.WhyRefused(With(host, "http://127.0.0.1:8080")));
  EXPECT_FALSE(rules.WhyRefused(With(host, "https://chat.example")));
  for (const char* origin : {"http://evil.example", "null", "http://127.0.0.1:3000",
                             "http://chat.example", "https://chat.example.evil.example"}) {
    EXPECT_TRUE(rules.WhyRefused(With(host, origin))) << origin;
  }
}

TEST(OriginRules, KeysAndOtherAddressesNeedNoCheck) {
  const http::Request request = With("evil.example", "http://evil.example:1");
  EXPECT_FALSE(OriginRules({}, "127.0.0.1", /*has_keys=*/true).WhyRefused(request));
  EXPECT_FALSE(OriginRules({}, "0.0.0.0", false).WhyRefused(request));
  EXPECT_TRUE(OriginRules({}, "127.0.0.1", false).WhyRefused(request));
}

TEST(OriginRules, PreflightsOfAllowedPagesAreAnswered) {
  http::Request request = With("127.0.0.1", "https://chat.example");
  request.method = "OPTIONS";
  request.headers["access-control-request-method"] = "POST";
  request.headers["access-control-request-headers"] = "authorization,content-type";
  const OriginRules rules({.cors_origins = {"https://chat.example"}}, "0.0.0.0", true);
  const auto response = rules.AnswerPreflight(request);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 204);
  EXPECT_EQ(response->headers.back().second, "authorization,content-type");
  request.headers["origin"] = "https://evil.example";
  EXPECT_FALSE(rules.AnswerPreflight(request));
}

}  // namespace
}  // namespace kvlathe::server
