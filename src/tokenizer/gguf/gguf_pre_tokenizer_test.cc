#include "tokenizer/gguf/gguf_pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

std::vector<std::string> GgufPieces(std::string_view name, std::string_view text) {
  const auto found = FindGgufPreTokenizer(name);
  EXPECT_TRUE(found.ok()) << MessageOf(found.status());
  std::vector<std::string> pieces;
  if (!found.ok()) return pieces;
  RegexScratch scratch;
  found->pre_tokenizer.Split(text, /*is_text_start=*/true, &scratch,
                             [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

struct GgufPiecesCase {
  std::vector<const char*> names;
  std::vector<std::string> pieces;  // of kGgufPiecesText
};
constexpr std::string_view kGgufPiecesText = "We'LL go:  12345 x-`-\n\n y";

const std::vector<GgufPiecesCase>& GgufPiecesCases() {
  static const std::vector<GgufPiecesCase> kCases = {
      {{"gpt-2", "gpt2", "phi-2"},
       {"We", "'", "LL", " go", ":", " ", " 12345", " x", "-`-", "\n\n", " y"}},
      {{"smollm", "starcoder", "refact", "command-r"},
       {"We", "'", "LL", " go", ":", "  ", "1", "2", "3", "4", "5", " x", "-`-", "\n\n", " y"}},
      {{"llama-bpe", "llama3", "llama-v3"},
       {"We", "'LL", " go", ":", " ", " ", "123", "45", " x", "-`-\n\n", " y"}},
      {{"qwen2"},
       {"We", "'LL", " go", ":", " ", " ", "1", "2", "3", "4", "5", " x", "-`-\n\n", " y"}},
      {{"falcon"}, {"We", "'", "LL", " go", ":", " ", " ", "123", "45", " x", "-`-", "\n\n", " y"}},
      // The grave accent is none of its punctuation.
      {{"default"},
       {"We", "'", "LL", " go", ":", " ", " ", "123", "45", " x", "-", "`", "-", "\n\n", " y"}},
      {{"deepseek-llm"},
       {"We", "'", "LL", " go", ":", "  ", "1", "2", "3", "4", "5", " x", "-`-", "\n", "\n", " y"}},
  };
  return kCases;
}

TEST(GgufPreTokenizer, EveryNameCutsAsItsModelsTokenizerDoes) {
  for (const GgufPiecesCase& item : GgufPiecesCases()) {
    for (const char* name : item.names) {
      EXPECT_EQ(GgufPieces(name, kGgufPiecesText), item.pieces) << name;
    }
  }
}

TEST(GgufPreTokenizer, DeepseekKeepsCjkTogetherAndCasedLettersApart) {
  EXPECT_EQ(
      GgufPieces("deepseek-llm", "a\u4E2D\u6587\u00E9\uFF0C\u0663\u0664"),
      (std::vector<std::string>{"a", "\u4E2D\u6587", "\u00E9", "\uFF0C", "\u0663", "\u0664"}));
  // U+01BB is a letter without case.
  EXPECT_EQ(GgufPieces("deepseek-llm", "\u01BA\u01BA\u01BB\u01BB"),
            (std::vector<std::string>{"\u01BA\u01BA", "\u01BB\u01BB"}));
  // Its signs are the range from the colon to the tilde, so ASCII letters stand apart from others.
  EXPECT_EQ(GgufPieces("deepseek-llm", "x\u01BA"), (std::vector<std::string>{"x", "\u01BA"}));
}

TEST(GgufPreTokenizer, NormalisationMergesAndBosComeWithTheName) {
  for (const GgufPiecesCase& item : GgufPiecesCases()) {
    for (const std::string name : item.names) {
      const auto found = FindGgufPreTokenizer(name);
      const bool is_llama = name.starts_with("llama");
      EXPECT_EQ(found->ignore_merges, is_llama) << name;
      EXPECT_EQ(found->adds_bos, is_llama) << name;
      EXPECT_EQ(found->normalizer.empty(), name != "qwen2" && name != "command-r") << name;
    }
  }
}

TEST(GgufPreTokenizer, UnknownNamesAreRefusedWithTheKnownOnes) {
  const Status status = FindGgufPreTokenizer("tekken").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("\"tekken\"; known are default, gpt-2"));
}

}  // namespace
}  // namespace kvlathe
