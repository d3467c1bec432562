#include "structured/text_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/random.h"
#include "structured/text_formats.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

StatusOr<TextRule> RuleOfPattern(std::string_view pattern, int64_t least = 0,
                                 int64_t most = TextRule::kAnyLength) {
  const StatusOr<PatternNode> node = ParsePattern(pattern);
  if (!node.ok()) return node.status();
  int64_t n_steps_left = 100'000'000;
  return TextRule::Make(*node, least, most, &n_steps_left);
}

std::string WhyNoPattern(std::string_view pattern) {
  return MessageOf(ParsePattern(pattern).status());
}

// std::regex is slow and knows bytes only, but it is somebody else's.
TEST(TextRule, TakesWhatTheStandardLibraryTakes) {
  const char* const patterns[] = {"^a(b|c)*d?$",
                                  "[^a-c]{2,3}x|y",
                                  "(ab|a)(c|bcd)(d*)",
                                  "\\d+\\.\\w*",
                                  "(?:a?){3}a{3}",
                                  "a{2}b{1,}c{0,2}",
                                  "[\\]^-]+",
                                  "()",
                                  "|a",
                                  "(^a|b$)",
                                  "x*?y+?",
                                  "[a\\-z]",
                                  "\\x41\\u0042\\cJ?"};
  const std::string letters = "abcdxyz.019-^]A B\n";
  Random random(7);
  int n_taken = 0;
  for (const char* const pattern : patterns) {
    const StatusOr<TextRule> rule = RuleOfPattern(pattern);
    ASSERT_TRUE(rule.ok()) << pattern << ": " << rule.status();
    const std::regex expected(pattern);
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      const size_t n_letters = 1 + random.Below(letters.size());
      for (uint64_t n = random.Below(9); n > 0; --n) text += letters[random.Below(n_letters)];
      const bool is_taken = std::regex_match(text, expected);
      n_taken += static_cast<int>(is_taken);
      EXPECT_EQ(rule->Takes(text), is_taken) << pattern << " of '" << text << "'";
    }
  }
  EXPECT_GE(n_taken, 300);
}

TEST(TextRule, CharactersAreCodePoints) {
  EXPECT_TRUE(RuleOfPattern("^.{3}$")->Takes("a\u00e9\U0001F600"));
  EXPECT_TRUE(RuleOfPattern("[\\u00e0-\\u{1F600}]+")->Takes("\u00e9\U0001F600"));
  EXPECT_TRUE(RuleOfPattern("\\uD83D\\uDE00")->Takes("\U0001F600"));
  EXPECT_FALSE(RuleOfPattern("[^\u00e9]")->Takes("\u00e9"));
  EXPECT_FALSE(RuleOfPattern(".*")->Takes("\xC3"));
}

TEST(TextRule, KnowsWhereATextCanStillEnd) {
  const StatusOr<TextRule> rule = RuleOfPattern("^(ab)+c?$", 3, 6);
  ASSERT_TRUE(rule.ok()) << rule.status();
  EXPECT_TRUE(rule->Takes("abc"));
  EXPECT_FALSE(rule->Takes("ab"));
  EXPECT_FALSE(rule->Takes("abababc"));
  TextRuleWalk walk(&*rule);
  int place = walk.start();
  for (const char c : std::string("ababab")) place = walk.Step(place, static_cast<char32_t>(c));
  EXPECT_TRUE(walk.MayEnd(place, 6));
  EXPECT_FALSE(walk.CanEndBehind(place, 'a', 'c', 6));
  // Far beyond the lengths that are known one by one.
  const StatusOr<TextRule> loop = RuleOfPattern("^(abc)*$", 4000, 1'000'000);
  ASSERT_TRUE(loop.ok()) << loop.status();
  TextRuleWalk walker(&*loop);
  EXPECT_TRUE(walker.CanEnd(walker.start(), 999'999));
  EXPECT_TRUE(walker.CanEnd(walker.start(), 0));
  EXPECT_EQ(RuleOfPattern("^(abc)*$", 4, 5).status().code(), StatusCode::kInvalidArgument);
}

TEST(TextRule, ForgetsPlacesButWhereTextsAre) {
  const StatusOr<TextRule> rule = RuleOfPattern("[ab]*a[ab]{14}");
  ASSERT_TRUE(rule.ok()) << rule.status();
  TextRuleWalk walk(&*rule);
  Random random(3);
  int place = walk.start();
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    const char letter = random.Below(2) == 0 ? 'a' : 'b';
    text += letter;
    place = walk.Step(place, static_cast<char32_t>(letter));
    ASSERT_NE(place, TextRuleWalk::kNowhere) << i;
    ASSERT_EQ(walk.MayEnd(place, i + 1), i >= 14 && text[static_cast<size_t>(i - 14)] == 'a') << i;
    int* kept[] = {&place};
    walk.Forget(kept);
  }
}

TEST(TextPattern, SaysWhatIsNotSupported) {
  EXPECT_THAT(WhyNoPattern("(?!a)"), HasSubstr("looks ahead"));
  EXPECT_THAT(WhyNoPattern("(?<=a)"), HasSubstr("looks behind"));
  EXPECT_THAT(WhyNoPattern("(a)\\1"), HasSubstr("has \\1"));
  EXPECT_THAT(WhyNoPattern("\\bword"), HasSubstr("has \\b"));
  EXPECT_THAT(WhyNoPattern("\\p{L}"), HasSubstr("has \\p"));
  EXPECT_THAT(WhyNoPattern("a^b"), HasSubstr("'^' that is not at its beginning"));
  EXPECT_THAT(WhyNoPattern("(a$)b"), HasSubstr("'$' that is not at its end"));
  EXPECT_THAT(WhyNoPattern("((("), HasSubstr("without a ')'"));
  EXPECT_THAT(WhyNoPattern("a)"), HasSubstr("without a '('"));
  EXPECT_THAT(WhyNoPattern("[b-a]"), HasSubstr("ends before it begins"));
  EXPECT_THAT(WhyNoPattern("a{2"), HasSubstr("'{'"));
  EXPECT_THAT(WhyNoPattern("*"), HasSubstr("repeats nothing"));
  EXPECT_THAT(WhyNoPattern("\xFF"), HasSubstr("UTF-8"));
}

TEST(TextFormats, ArePatternsOfTheirTexts) {
  const std::pair<const char*, const char*> good[] = {
      {"date", "2024-02-28"},
      {"time", "23:59:59.5Z"},
      {"date-time", "2024-12-31T00:00:00+02:00"},
      {"duration", "P1Y2M3DT4H"},
      {"email", "a.b@c.de"},
      {"hostname", "a-b.example"},
      {"ipv4", "192.168.0.255"},
      {"ipv6", "fe80::1:2"},
      {"ipv6", "::"},
      {"ipv6", "1:2:3:4:5:6:7:8"},
      {"uri", "https://u@h.example:80/a/b?c=%20#d"},
      {"uri", "mailto:a@b.c"},
      {"uri-reference", "/a?b"},
      {"json-pointer", "/a~1b/\"0"},
      {"relative-json-pointer", "1/a"},
      {"uuid", "01234567-89ab-cdef-0123-456789abcdef"}};
  for (const auto& [format, text] : good) {
    const StatusOr<TextRule> rule = RuleOfPattern(*PatternOfFormat(format));
    ASSERT_TRUE(rule.ok()) << format << ": " << rule.status();
    EXPECT_TRUE(rule->Takes(text)) << format << " of " << text;
    EXPECT_FALSE(rule->Takes(std::string(text) + "/~\n")) << format;
  }
  EXPECT_FALSE(RuleOfPattern(*PatternOfFormat("date"))->Takes("2024-02-30"));
  EXPECT_FALSE(RuleOfPattern(*PatternOfFormat("ipv4"))->Takes("1.2.3.256"));
  EXPECT_FALSE(PatternOfFormat("colour"));
}

}  // namespace
}  // namespace kvlathe
