#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

// The pieces of a split, tokens as "#id:text".
std::vector<std::string> Pieces(const AddedTokenMatcher& matcher, const std::string& text,
                                bool parse_special = true) {
  std::vector<std::string> pieces;
  matcher.Split(text, parse_special, [&](std::optional<int32_t> id, size_t begin, size_t end) {
    const std::string piece = text.substr(begin, end - begin);
    pieces.push_back(id ? "#" + std::to_string(*id) + ":" + piece : piece);
  });
  return pieces;
}

AddedTokenMatcher MatcherOf(const std::vector<AddedToken>& tokens) {
  AddedTokenMatcher matcher;
  for (const AddedToken& token : tokens) matcher.Add(token, token.content);
  return matcher;
}

using Strings = std::vector<std::string>;

TEST(AddedTokenMatcherTest, TheLongestTokenWinsAtTheLeftmostPlace) {
  const auto matcher = MatcherOf({{.id = 1, .content = "<a>"}, {.id = 2, .content = "<a><b>"}});
  EXPECT_EQ(Pieces(matcher, "x<a><a><b>y"), (Strings{"x", "#1:<a>", "#2:<a><b>", "y"}));
  EXPECT_EQ(Pieces(matcher, "<a><"), (Strings{"#1:<a>", "<"}));
  EXPECT_EQ(Pieces(matcher, ""), Strings());
}

TEST(AddedTokenMatcherTest, StrippingTokensSwallowUnicodeSpaceOnTheirSide) {
  const auto matcher = MatcherOf(
      {{.id = 1, .content = "<l>", .lstrip = true}, {.id = 2, .content = "<r>", .rstrip = true}});
  EXPECT_EQ(Pieces(matcher, "a \u3000<l> b"), (Strings{"a", "#1: \u3000<l>", " b"}));
  EXPECT_EQ(Pieces(matcher, "a <r>\n\u00A0b"), (Strings{"a ", "#2:<r>\n\u00A0", "b"}));
  // Space that one token has swallowed is not swallowed again.
  EXPECT_EQ(Pieces(matcher, "<r> <l>"), (Strings{"#2:<r> ", "#1:<l>"}));
}

TEST(AddedTokenMatcherTest, SingleWordsNeedWordBoundaries) {
  const auto matcher = MatcherOf({{.id = 1, .content = "cog", .single_word = true}});
  EXPECT_EQ(Pieces(matcher, "cog, cogs \u00E9cog cog_"),
            (Strings{"#1:cog", ", cogs \u00E9cog cog_"}));
}

TEST(AddedTokenMatcherTest, SpecialTokensAreTextWhenNotParsed) {
  const auto matcher =
      MatcherOf({{.id = 1, .content = "<s>", .special = true}, {.id = 2, .content = "<t>"}});
  EXPECT_EQ(Pieces(matcher, "<s><t>", false), (Strings{"<s>", "#2:<t>"}));
}

}  // namespace
}  // namespace kvlathe
