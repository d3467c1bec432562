#include "tokenizer/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/gguf/sample_gguf_tokenizers.h"
#include "tokenizer/vocabulary.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

class GgufTokenizerTest : public testing::Test {
 protected:
  using Ids = std::vector<int32_t>;

  std::unique_ptr<Tokenizer> Load(const GgufTokenizerSample& sample, const std::string& pre = {}) {
    sample.Write(path_);
    auto tokenizer = Tokenizer::Load(path_, {.pre = pre});
    EXPECT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
  void ExpectRefused(const GgufTokenizerSample& sample, StatusCode code, std::string_view part) {
    sample.Write(path_);
    ExpectFailure(Tokenizer::Load(path_).status(), code, part);
  }
  void ExpectFailure(const Status& status, StatusCode code, std::string_view part) {
    EXPECT_EQ(status.code(), code) << MessageOf(status);
    EXPECT_THAT(MessageOf(status), HasSubstr(path_ + ": "));
    EXPECT_THAT(MessageOf(status), HasSubstr(std::string(part)));
    EXPECT_EQ(MessageOf(status).find('\n'), std::string::npos);
  }

  ScratchFolder folder_;
  std::string path_ = folder_ / "model.gguf";
};

TEST_F(GgufTokenizerTest, ByteLevelGivesTheIdsOfTheDirectory) {
  nlohmann::json json = ByteLevelSample();
  json["added_tokens"] = nlohmann::json::array();
  ASSERT_TRUE(WriteFileAtomically(folder_ / "tokenizer.json", json.dump()).ok());
  const auto expected = Tokenizer::Load(folder_.path());
  const auto tokenizer = Load(GgufByteLevelSample("gpt-2"));
  const std::string text = SampleText(20000) + "\xFF\u00E9\xC3 \u4E2D  \n\n\t\xF0\x9F";
  EXPECT_EQ(tokenizer->Tokenize(text, true), (*expected)->Tokenize(text, true));
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize(text, true)), text);
  EXPECT_EQ(tokenizer->vocab_size(), (*expected)->vocab_size());
}

TEST_F(GgufTokenizerTest, SentencePieceGivesTheIdsOfTheDirectory) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "tokenizer.model", SentencePieceSample()).ok());
  const auto expected = Tokenizer::Load(folder_.path());
  const auto tokenizer = Load(GgufSentencePieceSample());
  const std::string text = SampleText(20000) + "\xFF\u00E9\xC3 \u4E2D  \n\n\t<s>a</s> b\xF0\x9F";
  EXPECT_EQ(tokenizer->Tokenize(text, true), (*expected)->Tokenize(text, true));
  EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize("\xFF\u00E9 a\n", true)), "\xFF\u00E9 a\n");
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
}

TEST_F(GgufTokenizerTest, TheTokenizerOutlivesTheFile) {
  for (const auto& sample : {GgufByteLevelSample("gpt-2"), GgufSentencePieceSample()}) {
    sample.Write(path_);
    std::unique_ptr<Tokenizer> tokenizer;
    {
      const auto file = GgufFile::Open(path_);
      ASSERT_TRUE(file.ok()) << MessageOf(file.status());
      tokenizer = *LoadGgufTokenizer(*file);
    }
    std::filesystem::remove(path_);
    EXPECT_EQ(tokenizer->Detokenize(tokenizer->Tokenize("the lathe\n", true)), "the lathe\n");
  }
}

TEST_F(GgufTokenizerTest, WithoutAPreTokenizerTheDefaultCuts) {
  GgufTokenizerSample sample = GgufByteLevelSample(std::nullopt);
  const int32_t four = sample.Add("1234", 1), three = sample.Add("123", 1);
  sample.Add("12", 1);
  sample.merges.insert(sample.merges.end(), {"1 2", "12 3", "123 4"});
  EXPECT_EQ(Load(sample)->Tokenize("1234", false), (Ids{three, '4'}));
  EXPECT_EQ(Load(sample, "gpt2")->Tokenize("1234", false), Ids{four}) << "the option replaces it";
  sample.pre = "gpt-2";
  EXPECT_EQ(Load(sample)->Tokenize("1234", false), Ids{four});
}

TEST_F(GgufTokenizerTest, Qwen2AndCommandRNormaliseToNfc) {
  for (const char* pre : {"qwen2", "command-r", "smollm"}) {
    const auto tokenizer = Load(GgufByteLevelSample(pre));
    EXPECT_EQ(tokenizer->Tokenize("e\u0301", false) == tokenizer->Tokenize("\u00E9", false),
              pre != std::string("smollm"));
  }
}

TEST_F(GgufTokenizerTest, LlamaBpeTakesWholeWords) {
  GgufTokenizerSample sample = GgufByteLevelSample("llama-bpe");
  const int32_t word = sample.Add("zqzq", 1);
  EXPECT_EQ(Load(sample)->Tokenize("zqzq", false), Ids{word});
  sample.pre = "gpt-2";
  EXPECT_EQ(Load(sample)->Tokenize("zqzq", false).size(), 4u);
}

TEST_F(GgufTokenizerTest, ControlTokensAreSpecialAndUserDefinedOnesText) {
  for (GgufTokenizerSample sample : {GgufByteLevelSample("gpt-2"), GgufSentencePieceSample()}) {
    sample.flags["add_space_prefix"] = false;
    const int32_t control = sample.Add("<|turn|>", 3), word = sample.Add("<br>", 4);
    const int32_t spaces = sample.Add("   ", 4);
    sample.Add("[PAD9]", 5);
    const auto tokenizer = Load(sample);
    const int32_t a = tokenizer->Tokenize("a", false)[0];
    EXPECT_EQ(tokenizer->Tokenize("a<br><|turn|>a", false), (Ids{a, word, control, a}));
    EXPECT_EQ(tokenizer->Tokenize("a   a", false), (Ids{a, spaces, a}));
    EXPECT_EQ(tokenizer->Tokenize("<br>", false, /*parse_special=*/false), Ids{word});
    EXPECT_GT(tokenizer->Tokenize("<|turn|>", false, /*parse_special=*/false).size(), 1u);
    EXPECT_GT(tokenizer->Tokenize("[PAD9]", false).size(), 1u) << "unused tokens are not matched";
    EXPECT_EQ(tokenizer->TokenBytes(control), "");
    EXPECT_EQ(tokenizer->TokenBytes(control, /*keep_special=*/true), "<|turn|>");
    EXPECT_EQ(tokenizer->TokenBytes(word), "<br>");
    EXPECT_EQ(tokenizer->TokenBytes(spaces), "   ");
  }
}

TEST_F(GgufTokenizerTest, WhatEndsATurnIsSpecialWhateverItsType) {
  GgufTokenizerSample sample = GgufByteLevelSample("gpt-2");
  const int32_t by_text = sample.Add("<|im_end|>", 4), by_key = sample.Add("<turn>", 1);
  sample.ids["eot"] = by_key;
  const auto tokenizer = Load(sample);
  EXPECT_EQ(tokenizer->Tokenize("a<|im_end|><turn>", false), (Ids{'a', by_text, by_key}));
  EXPECT_EQ(tokenizer->Detokenize(Ids{'a', by_text, by_key}), "a");
}

TEST_F(GgufTokenizerTest, ByteLevelAddsBosOnlyWhereAskedTo) {
  GgufTokenizerSample sample = GgufByteLevelSample("gpt-2");
  const int32_t bos = sample.Add("<|begin|>", 3);
  EXPECT_EQ(Load(sample)->bos_id(), std::nullopt);
  sample.ids = {{"bos", bos}, {"eos", 7}};
  EXPECT_EQ(Load(sample)->Tokenize("a", true), Ids{'a'});
  EXPECT_EQ(Load(sample)->bos_id(), bos);
  EXPECT_EQ(Load(sample)->eos_id(), 7);
  sample.flags["add_bos_token"] = true;
  EXPECT_EQ(Load(sample)->Tokenize("a", true), (Ids{bos, 'a'}));
  EXPECT_EQ(Load(sample)->Tokenize("a", false), Ids{'a'});
  sample.pre = "llama-bpe";
  sample.flags.clear();
  EXPECT_EQ(Load(sample)->Tokenize("a", true), (Ids{bos, 'a'}));
  sample.flags["add_bos_token"] = false;
  EXPECT_EQ(Load(sample)->Tokenize("a", true), Ids{'a'});
}

TEST_F(GgufTokenizerTest, SentencePieceAddsBosUnlessToldOtherwise) {
  GgufTokenizerSample sample = GgufSentencePieceSample();
  EXPECT_EQ(Load(sample)->Tokenize("the", true).front(), 1);
  sample.ids["bos"] = 2;
  EXPECT_EQ(Load(sample)->Tokenize("the", true).front(), 2);
  sample.flags["add_bos_token"] = false;
  EXPECT_EQ(Load(sample)->Tokenize("the", true), Load(sample)->Tokenize("the", false));
}

TEST_F(GgufTokenizerTest, TheSpacePrefixFollowsTheFile) {
  GgufTokenizerSample sample = GgufSentencePieceSample();
  const int32_t user = sample.Add("<br>", 4);
  const auto with = Load(sample);
  const Ids word = with->Tokenize("the", false);
  ASSERT_EQ(word.size(), 1u);
  EXPECT_EQ(with->TokenBytes(word[0]), " the");
  EXPECT_EQ(with->Tokenize("the<br>the", false), (Ids{word[0], user, word[0]}));
  EXPECT_EQ(with->Detokenize(word), "the");
  sample.flags["add_space_prefix"] = false;
  const auto without = Load(sample);
  EXPECT_EQ(without->Tokenize(" the", false), word);
  EXPECT_EQ(without->Tokenize("the", false).size(), 3u);
  EXPECT_EQ(without->Detokenize(word), " the");
  EXPECT_EQ(without->Detokenize(without->Tokenize("  the  lathe \n ", false)), "  the  lathe \n ");
}

TEST_F(GgufTokenizerTest, TheHighestScoreMergesFirstAndTheLeftmostOfEquals) {
  GgufTokenizerSample sample = GgufSentencePieceSample();
  sample.flags["add_space_prefix"] = false;
  const auto id_of = [&](const std::string& token) {
    return static_cast<int32_t>(std::ranges::find(sample.tokens, token) - sample.tokens.begin());
  };
  const int32_t qx = sample.Add("QX", 1, -9), xz = sample.Add("XZ", 1, -8.5);
  EXPECT_EQ(Load(sample)->Tokenize("QXZ", false), (Ids{id_of("Q"), xz}));
  sample.scores[qx] = -8.5;
  EXPECT_EQ(Load(sample)->Tokenize("QXZ", false), (Ids{qx, id_of("Z")}));
}

TEST_F(GgufTokenizerTest, UnknownCharactersBecomeBytesOrTheUnknownToken) {
  GgufTokenizerSample sample = GgufSentencePieceSample();
  sample.flags["add_space_prefix"] = false;
  EXPECT_EQ(Load(sample)->Tokenize("\u4E2D", false), (Ids{3 + 0xE4, 3 + 0xB8, 3 + 0xAD}));
  for (int64_t& type : sample.types) type = type == 6 ? 1 : type;
  EXPECT_EQ(Load(sample)->Tokenize("\u4E2D", false), Ids{0});
}

TEST_F(GgufTokenizerTest, EmptyTokensAreNames) {
  for (GgufTokenizerSample sample : {GgufByteLevelSample("gpt-2"), GgufSentencePieceSample()}) {
    const int32_t first = sample.Add("", 5), second = sample.Add("", 5);
    const auto tokenizer = Load(sample);
    EXPECT_EQ(tokenizer->TokenBytes(first), fmt::format("[EMPTY_{}]", first));
    EXPECT_EQ(tokenizer->vocab_size(), second + 1);
  }
}

TEST_F(GgufTokenizerTest, OtherModelsAndPreTokenizersAreRefusedByName) {
  GgufTokenizerSample sample = GgufByteLevelSample("tekkem");
  ExpectRefused(sample, StatusCode::kUnimplemented,
                "tokenizer.ggml.pre: unknown pre-tokenizer \"tekkem\"; near are tekken");
  for (const char* model : {"bert", "t5", "rwkv", "none", "no_vocab", "plamo2"}) {
    sample.model = model;
    ExpectRefused(sample, StatusCode::kUnimplemented, fmt::format("the tokenizer \"{}\"", model));
  }
  sample.model = "";
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.model: the file has no tokenizer");
}

// gpt-oss: texts of the chat format are control tokens, or user-defined in files that show them.
TEST_F(GgufTokenizerTest, HarmonysTokensAreParsed) {
  GgufTokenizerSample sample = GgufByteLevelSample("gpt-4o");
  const int32_t start = sample.Add("<|start|>", 3), channel = sample.Add("<|channel|>", 4),
                message = sample.Add("<|message|>", 4), returns = sample.Add("<|return|>", 1),
                call = sample.Add("<|call|>", 1);
  sample.ids["eos"] = returns;
  const auto tokenizer = Load(sample);
  EXPECT_EQ(tokenizer->Tokenize("<|start|><|channel|><|message|><|call|><|return|>", true),
            (Ids{start, channel, message, call, returns}));
  EXPECT_EQ(tokenizer->TokenBytes(channel), "<|channel|>");
  EXPECT_EQ(tokenizer->TokenBytes(call), "");
  EXPECT_EQ(tokenizer->eos_id(), returns);
}

TEST_F(GgufTokenizerTest, KimisIdsAreItsMergesWhereTheFileHasNone) {
  GgufTokenizerSample sample = GgufByteLevelSample("kimi-k2");
  const auto with_merges = Load(sample);
  const std::string text = SampleText(5000);
  const Ids expected = with_merges->Tokenize(text, false);
  sample.merges.clear();
  EXPECT_EQ(Load(sample)->Tokenize(text, false), expected);
  sample.pre = "gpt-2";
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.merges: there are no merges");
}

// Gemma 4: characters with U+2581 for spaces, bytes for what has no token, newlines in runs.
TEST_F(GgufTokenizerTest, Gemma4MergesCharacters) {
  const nlohmann::json model = CharLevelSample()["model"];
  GgufTokenizerSample sample{.model = "gemma4"};
  sample.tokens = TokensOf(model["vocab"]);
  sample.types.assign(sample.tokens.size(), 1);
  sample.types[1] = sample.types[2] = 3;
  sample.merges = model["merges"].get<std::vector<std::string>>();
  sample.ids = {{"bos", 1}, {"eos", 2}};
  const int32_t lines = sample.Add("\n\n", 1);
  const auto tokenizer = Load(sample);
  const Ids ids = tokenizer->Tokenize("a lathe\n\n\u4E2D\n</s>", true);
  const auto id_of = [&](const char* text) { return model["vocab"][text].get<int32_t>(); };
  EXPECT_EQ(ids, (Ids{1, id_of("a"), id_of("\u2581lathe"), lines, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD,
                      3 + 0x0A, 2}));
  EXPECT_EQ(tokenizer->Detokenize(ids), "a lathe\n\n\u4E2D\n");
  sample.flags["add_bos_token"] = false;
  EXPECT_EQ(Load(sample)->Tokenize("a", true).front(), 1);
}

TEST_F(GgufTokenizerTest, ListsMustFitTogether) {
  for (const GgufTokenizerSample& whole :
       {GgufByteLevelSample("gpt-2"), GgufSentencePieceSample()}) {
    GgufTokenizerSample sample = whole;
    sample.types.pop_back();
    ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.token_type: ");
    sample = whole;
    sample.types[5] = 9;
    ExpectRefused(sample, StatusCode::kDataLoss, "token_type: token 5 has type 9");
    sample.types[5] = -1;
    ExpectRefused(sample, StatusCode::kDataLoss, "token_type: token 5 has type -1");
    sample = whole;
    sample.tokens.clear();
    ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.tokens: there are no tokens");
    sample = whole;
    sample.tokens[300] = sample.tokens[301] = "\n";
    ExpectRefused(sample, StatusCode::kDataLoss,
                  "tokenizer.ggml.tokens: tokens 300 and 301 are equal");
    for (const char* name : {"bos", "eos", "eot"}) {
      sample = whole;
      sample.ids[name] = static_cast<int64_t>(sample.tokens.size());
      ExpectRefused(sample, StatusCode::kDataLoss, fmt::format("tokenizer.ggml.{}_token_id", name));
    }
  }
}

TEST_F(GgufTokenizerTest, MergesMustNameTokens) {
  const GgufTokenizerSample whole = GgufByteLevelSample("gpt-2");
  for (const char* merge : {"ab", "", " ", "a ", " b", "zz qq", "a b c", "a\nb"}) {
    GgufTokenizerSample sample = whole;
    sample.merges[1] = merge;
    ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.merges: merge 2 ");
  }
  GgufTokenizerSample sample = whole;
  sample.merges.clear();
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.merges: there are no merges");
}

TEST_F(GgufTokenizerTest, PiecesMustMakeAModel) {
  const GgufTokenizerSample whole = GgufSentencePieceSample();
  GgufTokenizerSample sample = whole;
  sample.scores.pop_back();
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.scores: ");
  sample.scores.clear();
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.scores: 0 scores for");
  sample.scores.assign(sample.tokens.size(), std::numeric_limits<double>::quiet_NaN());
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.scores: token 0 has the score nan");
  sample = whole;
  sample.types[10] = 1;
  ExpectRefused(sample, StatusCode::kDataLoss, "token_type: 255 tokens have type 6");
  sample = whole;
  sample.types[300] = 6;
  ExpectRefused(sample, StatusCode::kDataLoss, "token_type: token 300");
  sample = whole;
  sample.types[0] = 3;
  ExpectRefused(sample, StatusCode::kDataLoss, "token_type: no token has type 2");
  sample.ids["unknown"] = 0;
  EXPECT_EQ(Load(sample)->Tokenize("<unk>", false), Ids{0});
  sample.ids["unknown"] = -1;
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.unknown_token_id");
  sample = whole;
  sample.types[1] = 2;
  EXPECT_EQ(Load(sample)->Tokenize("<s>", false), Ids{1}) << "one of two unknown tokens is kept";
  sample = whole;
  sample.Add(std::string("\0", 1), 4);
  sample.Add(std::string(" \0 ", 3), 4);
  EXPECT_EQ(Load(sample)->Tokenize(std::string("\0", 1), false).back(),
            static_cast<int32_t>(whole.tokens.size()));
}

TEST_F(GgufTokenizerTest, TooManyTokensAreRefused) {
  GgufTokenizerSample sample{.model = "gpt2"};
  sample.tokens.assign(Vocabulary::kMaxTokens + 1, "");
  ExpectRefused(sample, StatusCode::kDataLoss, "tokenizer.ggml.tokens: 2097153 tokens");
}

TEST_F(GgufTokenizerTest, APathThatIsNoModelSaysWhatItIs) {
  path_ = folder_ / "none";
  ExpectFailure(Tokenizer::Load(path_).status(), StatusCode::kNotFound,
                "no such file or directory");
  path_ = folder_ / "notes.gguf";
  ASSERT_TRUE(WriteFileAtomically(path_, "hello").ok());
  ExpectFailure(Tokenizer::Load(path_).status(), StatusCode::kDataLoss,
                "not a GGUF file; give a Hugging Face model directory or a .gguf file");
}

}  // namespace
}  // namespace kvlathe
