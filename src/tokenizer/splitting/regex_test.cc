#include "tokenizer/splitting/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvlathe {
namespace {

using testing::HasSubstr;

std::vector<std::string> MatchesOf(std::string_view pattern, std::string_view text,
                                   RegexSyntax syntax = RegexSyntax::kOniguruma) {
  const auto regex = Regex::Compile(pattern, syntax);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  RegexScratch scratch;
  RegexMatches matches(*regex, text, &scratch);
  Regex::Match match;
  while (matches.Next(&match)) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

TEST(Regex, TheTwoSyntaxesDifferWhereTheirEnginesDo) {
  using Found = std::vector<std::string>;
  constexpr RegexSyntax kRust = RegexSyntax::kRust;
  EXPECT_EQ(MatchesOf("[0-9]{1,3}+", "12345"), (Found{"12345"}));
  EXPECT_EQ(MatchesOf("[0-9]{1,3}+", "12345", kRust), (Found{"123", "45"}));
  EXPECT_EQ(MatchesOf("a$", "a\na"), (Found{"a", "a"}));
  EXPECT_EQ(MatchesOf("a$", "a\na\n", kRust), Found{});
  EXPECT_EQ(MatchesOf("(?m)a$", "a\na", kRust), (Found{"a", "a"}));
  EXPECT_EQ(MatchesOf("(?s:a.a)", "a\na", kRust), (Found{"a\na"}));
  EXPECT_EQ(MatchesOf(R"(\w+)", "a\u00B2"), (Found{"a\u00B2"}));
  EXPECT_EQ(MatchesOf(R"(\w+)", "a\u00B2", kRust), (Found{"a"}));
}

TEST(Regex, AnEmptyMatchRightBehindAMatchIsNone) {
  EXPECT_EQ(MatchesOf("x*", "axxb"), (std::vector<std::string>{"", "xx", ""}));
  EXPECT_EQ(MatchesOf("", "\u00E9a"), (std::vector<std::string>{"", "", ""}));
  EXPECT_EQ(MatchesOf("x", ""), std::vector<std::string>{});
}

TEST(Regex, WhatCannotBeSpelledIsNamed) {
  constexpr std::pair<const char*, const char*> kCases[] = {
      {R"((a)\1)", R"("\1" is not supported)"},
      {R"(\Ga)", R"("\G" is not)"},
      {R"(a\Kb)", R"("\K" is not)"},
      {"(?x: a)", R"("(?x" is not)"},
      {"(?~ab)", R"("(?~" is not)"},
      {R"(\xC3\xA9)", R"("\xC3" is not)"},
      {R"(\p{L1})", R"("\p{L1}" is not supported)"},
      {"(?s:a)", R"("(?s" is not)"},
      {R"(\k<a>)", R"("\k" is not supported)"}};
  for (const auto& [pattern, part] : kCases) {
    const Status status = Regex::Compile(pattern).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(part)) << pattern;
    EXPECT_THAT(MessageOf(status), HasSubstr(pattern));
  }
  EXPECT_EQ(Regex::Compile(std::string(70000, 'a')).status().code(), StatusCode::kUnimplemented);
}

TEST(Regex, WhatIsNotCompleteIsDataLoss) {
  for (const char* pattern : {"(a",         "a)",       "[a",
                              "[",          "[^",       "[]",
                              "[a-",        "[a&&",     "\\",
                              "a\\",        "*",        R"(\p{L)",
                              R"(\p)",      R"(\x{)",   R"(\x{110000})",
                              R"(\u12)",    "(?",       "(?i",
                              "(?<a",       "[z-a]",    R"(\p{Nonsense})",
                              "a{3,2}",     "(?<=a*)b", "\xFF",
                              "[[:alpha:]", R"([\)"}) {
    const Status status = Regex::Compile(pattern).status();
    EXPECT_FALSE(status.ok()) << pattern;
    EXPECT_THAT(MessageOf(status), HasSubstr("regular expression")) << pattern;
  }
  EXPECT_FALSE(Regex::Compile(std::string(3000, '(')).ok());
  EXPECT_FALSE(Regex::Compile(std::string(3000, '[')).ok());
}

TEST(Regex, AnExpressionThatExplodesIsAnErrorThatNamesIt) {
  const std::string text = std::string(60, 'a') + "b";
  for (const char* pattern : {"(a+)+$", "(a|aa|aaa)+$"}) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_TRUE(regex.ok());
    RegexScratch scratch;
    Regex::Match match;
    EXPECT_FALSE(regex->Find(text, 0, &scratch, &match));
    EXPECT_TRUE(scratch.failed());
    // Until it is asked for, nothing is found.
    EXPECT_FALSE(Regex::Compile("b")->Find(text, 0, &scratch, &match));
    const Status failure = scratch.TakeFailure();
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(failure), HasSubstr(fmt::format("\"{}\" gives up at byte 0", pattern)));
    EXPECT_TRUE(scratch.TakeFailure().ok());
    EXPECT_TRUE(Regex::Compile("b")->Find(text, 0, &scratch, &match));
  }
}

// Compiled code has a stack of 64 MiB; what needs more is interpreted.
TEST(Regex, AGroupMayRepeatAMillionTimes) {
  const auto regex = Regex::Compile(R"((?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+)");
  for (const size_t n : {size_t{1} << 20, size_t{3} << 19, size_t{7} << 18}) {
    const std::string text(n, 'a');
    RegexScratch scratch;
    Regex::Match match;
    const bool found = regex->Find(text, 0, &scratch, &match);
    const Status failure = scratch.TakeFailure();
    ASSERT_TRUE(found) << failure;
    EXPECT_EQ(match.end, n);
  }
}

}  // namespace
}  // namespace kvlathe
