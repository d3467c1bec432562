#include "tokenizer/splitting/named_pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

std::vector<std::string> PiecesByName(std::string_view name, std::string_view text) {
  const auto found = FindPreTokenizer(name);
  EXPECT_TRUE(found.ok()) << MessageOf(found.status());
  std::vector<std::string> pieces;
  if (!found.ok()) return pieces;
  RegexScratch scratch;
  found->pre_tokenizer.Split(text, /*is_text_start=*/true, &scratch,
                             [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

struct NamedPiecesCase {
  std::vector<const char*> names;
  std::vector<std::string> pieces;  // of kNamedPiecesText
};
constexpr std::string_view kNamedPiecesText = "We'LL go:  12345 x-`-\n\n y";

const std::vector<NamedPiecesCase>& NamedPiecesCases() {
  static const std::vector<NamedPiecesCase> kCases = {
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

TEST(NamedPreTokenizer, EveryNameCutsAsItsModelsTokenizerDoes) {
  for (const NamedPiecesCase& item : NamedPiecesCases()) {
    for (const char* name : item.names) {
      EXPECT_EQ(PiecesByName(name, kNamedPiecesText), item.pieces) << name;
    }
  }
}

TEST(NamedPreTokenizer, DeepseekKeepsCjkTogetherAndCasedLettersApart) {
  EXPECT_EQ(
      PiecesByName("deepseek-llm", "a\u4E2D\u6587\u00E9\uFF0C\u0663\u0664"),
      (std::vector<std::string>{"a", "\u4E2D\u6587", "\u00E9", "\uFF0C", "\u0663", "\u0664"}));
  // U+01BB is a letter without case.
  EXPECT_EQ(PiecesByName("deepseek-llm", "\u01BA\u01BA\u01BB\u01BB"),
            (std::vector<std::string>{"\u01BA\u01BA", "\u01BB\u01BB"}));
  // Its signs are the range from the colon to the tilde, so ASCII letters stand apart from others.
  EXPECT_EQ(PiecesByName("deepseek-llm", "x\u01BA"), (std::vector<std::string>{"x", "\u01BA"}));
}

TEST(NamedPreTokenizer, NormalisationMergesAndBosComeWithTheName) {
  for (const NamedPiecesCase& item : NamedPiecesCases()) {
    for (const std::string name : item.names) {
      const auto found = FindPreTokenizer(name);
      const bool is_llama = name.starts_with("llama");
      EXPECT_EQ(found->ignore_merges, is_llama) << name;
      EXPECT_EQ(found->adds_bos, is_llama) << name;
      EXPECT_EQ(found->normalizer.empty(), name != "qwen2" && name != "command-r") << name;
    }
  }
}

TEST(NamedPreTokenizer, UnknownNamesAreRefusedWithThoseThatAreNear) {
  const Status status = FindPreTokenizer("deepseek-v4").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(MessageOf(status),
            "unknown pre-tokenizer \"deepseek-v4\"; near are deepseek-v3, deepseek-llm");
  EXPECT_THAT(MessageOf(FindPreTokenizer("qwen3").status()), testing::HasSubstr("qwen2, qwen35"));
  EXPECT_THAT(MessageOf(FindPreTokenizer("zzzzzzzz").status()),
              testing::HasSubstr("docs/tokenizers.md lists them"));
}

}  // namespace
}  // namespace kvlathe
