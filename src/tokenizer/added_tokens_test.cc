#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

// The pieces of a split, tokens as "#id:text".
std::vector<std::string> Pieces(const AddedTokenMatcher& matcher, const std::string& text,
                                const std::vector<TextRange>& plain = {}) {
  std::vector<std::string> pieces;
  matcher.Split(text, plain, [&](std::optional<int32_t> id, size_t begin, size_t end) {
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

TEST(AddedTokenMatcherTest, SpecialTokensAreTextInPlainRanges) {
  const auto matcher =
      MatcherOf({{.id = 1, .content = "<s>", .special = true}, {.id = 2, .content = "<t>"}});
  EXPECT_EQ(Pieces(matcher, "<s><t>", {{0, 6}}), (Strings{"<s>", "#2:<t>"}));
  EXPECT_EQ(Pieces(matcher, "<s>a<s>b<s>", {{3, 4}, {4, 7}}),
            (Strings{"#1:<s>", "a<s>b", "#1:<s>"}));
  EXPECT_EQ(Pieces(matcher, "<s><s>", {{0, 1}}), (Strings{"<s>", "#1:<s>"}));
  EXPECT_EQ(Pieces(matcher, "<s><s>", {{5, 6}}), (Strings{"#1:<s>", "<s>"}));
}

TEST(AddedTokenMatcherTest, ARefusedTokenHidesNoneThatBeginsWithinIt) {
  const auto matcher = MatcherOf({{.id = 1, .content = "<|<s>", .special = true},
                                  {.id = 2, .content = "<s>", .special = true}});
  EXPECT_EQ(Pieces(matcher, "<|<s>", {{0, 2}}), (Strings{"<|", "#2:<s>"}));
}

TEST(RangesWithinTest, AreCutAndCountedFromTheBeginning) {
  const std::vector<TextRange> ranges = {{0, 2}, {3, 5}, {8, 9}};
  const std::vector<TextRange> within = RangesWithin(ranges, 1, 4);
  ASSERT_EQ(within.size(), 2u);
  EXPECT_EQ(within[0].begin, 0u);
  EXPECT_EQ(within[0].end, 1u);
  EXPECT_EQ(within[1].begin, 2u);
  EXPECT_EQ(within[1].end, 3u);
  EXPECT_TRUE(RangesWithin(ranges, 5, 8).empty());
}

}  // namespace
}  // namespace kvlathe
