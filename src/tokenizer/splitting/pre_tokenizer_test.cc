#include "tokenizer/splitting/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "tokenizer/splitting/named_pre_tokenizer.h"

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;

Strings Pieces(const PreTokenizer& pre_tokenizer, const std::string& text) {
  RegexScratch scratch;
  Strings pieces;
  pre_tokenizer.Split(text, /*is_text_start=*/true, &scratch,
                      [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Strings NamedPieces(const std::string& name, const std::string& text) {
  return Pieces(FindPreTokenizer(name)->pre_tokenizer, text);
}

TEST(PreTokenizerTest, Gpt2KeepsOneSpaceWithAWordAndSplitsContractions) {
  EXPECT_EQ(NamedPieces("gpt2", "It's  12345 cogs!\n"),
            (Strings{"It", "'s", " ", " 12345", " cogs", "!", "\n"}));
}

TEST(PreTokenizerTest, Llama3GroupsThreeDigitsAndQwen2One) {
  EXPECT_EQ(NamedPieces("llama3", "x 12345"), (Strings{"x", " ", "123", "45"}));
  EXPECT_EQ(NamedPieces("qwen2", "x 123"), (Strings{"x", " ", "1", "2", "3"}));
  EXPECT_EQ(NamedPieces("llama3", "WE'LL\n\n go"), (Strings{"WE", "'LL", "\n\n", " go"}));
}

TEST(PreTokenizerTest, FalconIsolatesPunctuationAndDigitTriples) {
  EXPECT_EQ(NamedPieces("falcon", "cog--1234 x"), (Strings{"cog", "--", "123", "4", " x"}));
  // The byte B2 prints as a superscript two in the byte alphabet, which Falcon's digit rule sees.
  EXPECT_EQ(NamedPieces("falcon", "\u0432"), (Strings{"\xD0", "\xB2"}));
}

TEST(PreTokenizerTest, IllFormedBytesAreAPieceOfTheirOwn) {
  EXPECT_EQ(NamedPieces("gpt2", "ab\xFF\xC3 cd\xE2\x82"),
            (Strings{"ab", "\xFF\xC3", " cd", "\xE2\x82"}));
}

TEST(PreTokenizerTest, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_EQ(NamedPieces("gpt2", "  \u180E"), (Strings{" ", " \u180E"}));
}

Strings SplitAt(SplitBehavior behavior, bool invert, const std::string& text) {
  PreTokenizer pre_tokenizer;
  EXPECT_TRUE(pre_tokenizer.AddStep(SplitStep{*Regex::Compile("-"), behavior, invert}).ok());
  return Pieces(pre_tokenizer, text);
}

TEST(PreTokenizerTest, SplitBehaviorsPlaceTheMatchesAsNamed) {
  const std::string text = "a--b-";
  EXPECT_EQ(SplitAt(SplitBehavior::kRemoved, false, text), (Strings{"a", "b"}));
  EXPECT_EQ(SplitAt(SplitBehavior::kRemoved, true, text), (Strings{"-", "-", "-"}));
  EXPECT_EQ(SplitAt(SplitBehavior::kIsolated, false, text), (Strings{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(SplitAt(SplitBehavior::kContiguous, false, text), (Strings{"a", "--", "b", "-"}));
  EXPECT_EQ(SplitAt(SplitBehavior::kMergedWithPrevious, false, text), (Strings{"a-", "-", "b-"}));
  EXPECT_EQ(SplitAt(SplitBehavior::kMergedWithNext, false, text), (Strings{"a", "-", "-b", "-"}));
}

}  // namespace
}  // namespace kvlathe
