#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/sample_tokenizers.h"

namespace kvlathe {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

class TokenizerTest : public testing::Test {
 protected:
  void Write(std::string_view name, const json& contents) { WriteText(name, contents.dump()); }
  void WriteText(std::string_view name, std::string_view contents) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, contents).ok());
  }
  std::unique_ptr<Tokenizer> Load(const std::string& pre = {}) {
    auto tokenizer = Tokenizer::Load(folder_.path(), {.pre = pre});
    EXPECT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }

  ScratchFolder folder_;
};

// Every byte, well-formed or not, and text around it.
std::string AllBytes() {
  std::string text = "the lathe \u00E9 \U0001F999 ";
  for (int byte = 0; byte < 256; ++byte) text += {static_cast<char>(byte), ' ', 'x'};
  return text + " turns\n\n  slowly";
}

TEST_F(TokenizerTest, ByteLevelRoundTripsAnyBytes) {
  Write("tokenizer.json", ByteLevelSample());
  const auto tokenizer = Load();
  const Ids ids = tokenizer->Tokenize(AllBytes(), false);
  EXPECT_EQ(tokenizer->Detokenize(ids), AllBytes());
  // Bytes keep their ids, words are one token.
  EXPECT_EQ(tokenizer->Tokenize("\xFF", false), Ids{255});
  EXPECT_EQ(tokenizer->Tokenize(" lathe turns", false).size(), 2u);
}

TEST_F(TokenizerTest, CharLevelRoundTripsAnyBytes) {
  Write("tokenizer.json", CharLevelSample());
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize(AllBytes(), true)), AllBytes());
  EXPECT_EQ(tokenizer->Tokenize("lathe turns", false).size(), 2u);
  EXPECT_EQ(tokenizer->Tokenize("\xFF", false).back(), 3 + 0xFF);
}

TEST_F(TokenizerTest, SentencePieceRoundTripsAnyBytes) {
  WriteText("tokenizer.model", SentencePieceSample());
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize(AllBytes(), true)), AllBytes());
}

// Texts that try what the bound leans on: tokens as long as the vocabulary has, white space, marks.
void ExpectMinTokensIsABound(const Tokenizer& tokenizer) {
  std::string longest;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string bytes = tokenizer.TokenBytes(id, /*keep_special=*/true);
    if (bytes.size() > longest.size()) longest = std::move(bytes);
  }
  std::string repeated;
  for (int i = 0; i < 100; ++i) repeated += longest;
  for (const std::string& text :
       {std::string(), AllBytes(), SampleText(5000), longest, repeated, std::string(1000, ' '),
        std::string(1000, '\n'),
        std::string("e\u0301e\u0301\u2126\u1100\u1161\uFB01\u3000\u2581")}) {
    const Ids ids = tokenizer.Tokenize(text, false);
    EXPECT_LE(tokenizer.MinTokens(text), std::ssize(ids)) << text.substr(0, 100);
  }
  const std::string letters(100'000, 'a');
  EXPECT_GT(tokenizer.MinTokens(letters), 1000);
  EXPECT_LE(tokenizer.MinTokens(letters), std::ssize(tokenizer.Tokenize(letters, false)));
}

TEST_F(TokenizerTest, MinTokensIsABoundOfEveryForm) {
  Write("tokenizer.json", ByteLevelSample());
  ExpectMinTokensIsABound(*Load());
  json file = ByteLevelSample();
  file["normalizer"] = {{"type", "NFKC"}};
  file["added_tokens"][0]["rstrip"] = true;
  Write("tokenizer.json", file);
  ExpectMinTokensIsABound(*Load());
  const std::string end = "<|end|>" + std::string(100'000, ' ');
  EXPECT_LE(Load()->MinTokens(end), std::ssize(Load()->Tokenize(end, false)));
  Write("tokenizer.json", CharLevelSample());
  ExpectMinTokensIsABound(*Load());
}

// As SmolLM2's vocabulary, which lacks bytes that UTF-8 never has.
TEST_F(TokenizerTest, MinTokensCountsNoBytesThatHaveNoToken) {
  json file = ByteLevelSample();
  const char byte = '\xFF';
  file["model"]["vocab"].erase(BytesToAlphabet({&byte, 1}));
  Write("tokenizer.json", file);
  ExpectMinTokensIsABound(*Load());
  const std::string lost(10'000, byte);
  EXPECT_EQ(Load()->MinTokens(lost), 0);
  EXPECT_TRUE(Load()->Tokenize(lost, false).empty());
}

TEST_F(TokenizerTest, MinTokensIsABoundOfSentencePiece) {
  WriteText("tokenizer.model", SentencePieceSample());
  ExpectMinTokensIsABound(*Load());
}

TEST_F(TokenizerTest, MinTokensIsNoneWhereTextMayVanish) {
  json file = ByteLevelSample();
  const std::string letters(100'000, 'a');
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", ""}};
  Write("tokenizer.json", file);
  EXPECT_EQ(Load()->MinTokens(letters), 0);
}

TEST_F(TokenizerTest, SentencePieceModelAndTokenizerJsonGiveTheSameIds) {
  WriteText("tokenizer.model", SentencePieceSample());
  const auto library = Load();
  Write("tokenizer.json", CharLevelSample());
  const auto json_form = Load();
  const std::string text = SampleText(20000) + "\u00E9  \u2014 \u4E2D\n\n \n. the\t<s>roof</s>";
  EXPECT_EQ(library->Tokenize(text, true), json_form->Tokenize(text, true));
  EXPECT_EQ(library->vocab_size(), json_form->vocab_size());
}

TEST_F(TokenizerTest, MergesMayBePairs) {
  json file = ByteLevelSample();
  Write("tokenizer.json", file);
  const Ids expected = Load()->Tokenize(SampleText(2000), false);
  for (json& merge : file["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    const size_t space = line.find(' ');
    merge = {line.substr(0, space), line.substr(space + 1)};
  }
  Write("tokenizer.json", file);
  EXPECT_EQ(Load()->Tokenize(SampleText(2000), false), expected);
}

TEST_F(TokenizerTest, SpecialTokensAreParsedOnRequestAndLeftOutOfText) {
  Write("tokenizer.json", ByteLevelSample());
  const auto tokenizer = Load();
  const int32_t end = tokenizer->vocab_size() - 1;
  EXPECT_EQ(tokenizer->Tokenize("<|end|>", false), Ids{end});
  const Ids as_text = tokenizer->Tokenize("<|end|>", false, /*parse_special=*/false);
  EXPECT_EQ(as_text.size(), 7u);
  EXPECT_EQ(tokenizer->Detokenize(as_text), "<|end|>");
  EXPECT_EQ(tokenizer->TokenBytes(end), "");
  EXPECT_EQ(tokenizer->TokenBytes(end, /*keep_special=*/true), "<|end|>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(end + 1), "");
}

TEST_F(TokenizerTest, BosFollowsTheConfiguration) {
  Write("tokenizer.json", CharLevelSample());
  EXPECT_EQ(Load()->Tokenize("a", true).front(), 1) << "the template starts with <s>";
  Write("tokenizer_config.json", {{"add_bos_token", false}, {"eos_token", "</s>"}});
  auto tokenizer = Load();
  EXPECT_NE(tokenizer->Tokenize("a", true).front(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  json file = CharLevelSample();
  file["post_processor"] = nullptr;
  Write("tokenizer.json", file);
  Write("tokenizer_config.json",
        {{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", {{"content", "<s>"}}}});
  EXPECT_EQ(Load()->Tokenize("a", true).front(), 1);
  Write("tokenizer_config.json", {{"tokenizer_class", "Qwen2Tokenizer"}, {"bos_token", nullptr}});
  Write("generation_config.json", {{"bos_token_id", 1}, {"eos_token_id", {2, 0}}});
  tokenizer = Load();
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->eos_id(), 2);
}

TEST_F(TokenizerTest, NfcIsAppliedWhereTheFileAsksForIt) {
  json file = ByteLevelSample();
  file["normalizer"] = {{"type", "NFC"}};
  Write("tokenizer.json", file);
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Tokenize("cafe\u0301", false), tokenizer->Tokenize("caf\u00E9", false));
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize("e\xFF\u0301", false)), "e\xFF\u0301");
}

TEST_F(TokenizerTest, IgnoreMergesTakesWholeWords) {
  json file = ByteLevelSample();
  const int id = file["model"]["vocab"].size() + 1;
  file["model"]["vocab"]["zqzq"] = id;
  Write("tokenizer.json", file);
  EXPECT_EQ(Load()->Tokenize("zqzq", false).size(), 4u);
  file["model"]["ignore_merges"] = true;
  Write("tokenizer.json", file);
  EXPECT_EQ(Load()->Tokenize("zqzq", false), Ids{id});
}

class VocabAndMergesTest : public TokenizerTest {
 protected:
  void SetUp() override {
    const json model = ByteLevelSample()["model"];
    Write("vocab.json", model["vocab"]);
    std::string merges = "#version: 0.2\n";
    for (const auto& merge : model["merges"]) merges += merge.get<std::string>() + "\n";
    WriteText("merges.txt", merges);
  }
};

TEST_F(VocabAndMergesTest, ClassModelTypeOrOptionNameThePreTokenizer) {
  const std::string text = " 12345";
  const Ids one_space{' ', '1', '2', '3', '4', '5'};
  EXPECT_EQ(Tokenizer::Load(folder_.path()).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(Load("gpt2")->Tokenize(text, false), one_space);
  EXPECT_EQ(Tokenizer::Load(folder_.path(), {.pre = "bpe"}).status().code(),
            StatusCode::kInvalidArgument);
  Write("config.json", {{"model_type", "qwen2"}});
  EXPECT_EQ(Load()->Tokenize("e\u0301", false), Load()->Tokenize("\u00E9", false)) << "NFC";
  Write("tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"}});
  EXPECT_NE(Load()->Tokenize("e\u0301", false), Load()->Tokenize("\u00E9", false));
  // StarCoder's digits are single, and what stands before them is a piece of its own.
  Write("config.json", {{"model_type", "starcoder2"}});
  EXPECT_EQ(Load()->Tokenize(" lathe 12", false).size(), 4u);
  Write("tokenizer_config.json", {{"tokenizer_class", "CohereTokenizer"}});
  Write("config.json", {{"model_type", "cohere2"}});
  EXPECT_EQ(Load()->Tokenize("e\u0301", false), Load()->Tokenize("\u00E9", false)) << "NFC";
}

TEST_F(VocabAndMergesTest, AddedTokensComeFromTheConfiguration) {
  const int id = ByteLevelSample()["model"]["vocab"].size() + 3;
  Write("tokenizer_config.json",
        {{"tokenizer_class", "Qwen2Tokenizer"},
         {"added_tokens_decoder",
          {{std::to_string(id), {{"content", "<|turn|>"}, {"special", true}}}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Tokenize("a<|turn|>", false), (Ids{'a', id}));
  EXPECT_EQ(tokenizer->vocab_size(), id + 1);
}

TEST_F(VocabAndMergesTest, LeftoversInTokenizerJsonAreNotUsed) {
  json file = ByteLevelSample();
  const int id = file["model"]["vocab"].size() + 1;
  file["added_tokens"].push_back({{"id", id}, {"content", "   "}, {"special", false}});
  Write("tokenizer.json", file);
  EXPECT_EQ(Load()->Tokenize("   ", false), (Ids{' ', ' ', ' '}));
  Write("added_tokens.json", {{"   ", id}});
  EXPECT_EQ(Load()->Tokenize("   ", false), Ids{id}) << "listed, so it belongs to the model";
}

TEST_F(TokenizerTest, TiktokenRanksAreMerges) {
  // All bytes, then "ab" and "bc"; in "abc" the lower rank wins.
  std::string file;
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int byte = 0; byte < 256; ++byte) {
    file += {alphabet[byte >> 2], alphabet[(byte & 3) << 4]};
    file += "== " + std::to_string(byte) + "\n";
  }
  file += "YmM= 256\nYWI= 257\nYWJj 258\n";  // bc, ab, abc
  WriteText("tokenizer.model", file);
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Tokenize("xabc", false), (Ids{'x', 258}));
  EXPECT_EQ(tokenizer->Tokenize("abcd", false), (Ids{258, 'd'}));
  EXPECT_EQ(tokenizer->Tokenize("xabx", false), (Ids{'x', 257, 'x'}));
  EXPECT_EQ(tokenizer->Detokenize(Ids{258, 0xFF}), "abc\xFF");
}

TEST_F(TokenizerTest, LongTextWithoutBoundariesIsTokenised) {
  Write("tokenizer.json", CharLevelSample());
  const auto tokenizer = Load();
  const std::string text(200000, 'q');
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize(text, false)), text);
}

}  // namespace
}  // namespace kvlathe
