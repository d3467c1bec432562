// Damaged and hostile tokenizer files: one line that names the file and the fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/sample_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Status LoadFile(std::string_view name, std::string_view contents) {
  ScratchFolder folder;
  EXPECT_TRUE(WriteFileAtomically(folder / name, contents).ok());
  return Tokenizer::Load(folder.path()).status();
}

void ExpectRefused(const Status& status, StatusCode code, std::string_view part) {
  EXPECT_EQ(status.code(), code) << MessageOf(status);
  EXPECT_THAT(MessageOf(status), HasSubstr(std::string(part)));
  EXPECT_EQ(MessageOf(status).find('\n'), std::string::npos);
}

// The sample with one JSON pointer changed.
Status LoadChanged(const char* pointer, const json& value) {
  json file = ByteLevelSample();
  file[json::json_pointer(pointer)] = value;
  return LoadFile("tokenizer.json", file.dump());
}

TEST(HostileFilesTest, BrokenJsonIsDataLoss) {
  for (const char* text : {"", "{", "[]", "7", "{\"model\":", "\"\\ud800\"", "{\"model\":{}}"}) {
    const Status status = LoadFile("tokenizer.json", text);
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(MessageOf(status), HasSubstr("tokenizer.json"));
  }
  EXPECT_FALSE(LoadFile("tokenizer.json", std::string(200000, '[')).ok());
}

TEST(HostileFilesTest, MergesMustNameTokens) {
  ExpectRefused(LoadChanged("/model/merges/3", "zz qq"), StatusCode::kDataLoss, "merge 4");
  ExpectRefused(LoadChanged("/model/merges/0", "a"), StatusCode::kDataLoss, "merge 1");
  ExpectRefused(LoadChanged("/model/merges/0", ""), StatusCode::kDataLoss, "merge 1");
  ExpectRefused(LoadChanged("/model/merges/0", {"a", 3}), StatusCode::kDataLoss, "merge 1");
  ExpectRefused(LoadChanged("/model/merges", 5), StatusCode::kDataLoss, "merges");
}

TEST(HostileFilesTest, IdsMustBeUniqueAndInRange) {
  ExpectRefused(LoadChanged("/model/vocab/zz", -1), StatusCode::kDataLoss, "id -1");
  ExpectRefused(LoadChanged("/model/vocab/zz", int64_t{1} << 40), StatusCode::kDataLoss, "zz");
  ExpectRefused(LoadChanged("/model/vocab/zz", UINT64_MAX), StatusCode::kDataLoss, "zz");
  ExpectRefused(LoadChanged("/model/vocab/zz", 1.5), StatusCode::kDataLoss, "not an integer");
  ExpectRefused(LoadChanged("/model/vocab/zz", 65), StatusCode::kDataLoss, "two tokens");
  ExpectRefused(LoadChanged("/model/vocab", json::object()), StatusCode::kDataLoss, "vocabulary");
  ExpectRefused(LoadChanged("/added_tokens/0/id", 7), StatusCode::kDataLoss, "id 7");
  ExpectRefused(LoadChanged("/added_tokens/0/id", 1e300), StatusCode::kDataLoss, "no id");
  ExpectRefused(LoadChanged("/added_tokens/0/id", int64_t{1} << 31), StatusCode::kDataLoss, "end");
  ExpectRefused(LoadChanged("/added_tokens/0/content", ""), StatusCode::kDataLoss, "content");
}

TEST(HostileFilesTest, UnsupportedConstructsAreNamed) {
  const auto expect_named = [](const char* pointer, const json& value, const char* name) {
    ExpectRefused(LoadChanged(pointer, value), StatusCode::kUnimplemented, name);
  };
  expect_named("/model/type", "Unigram", "Unigram");
  expect_named("/model/dropout", 0.1, "dropout");
  expect_named("/normalizer", {{"type", "BertNormalizer"}}, "BertNormalizer");
  expect_named("/pre_tokenizer", {{"type", "UnicodeScripts"}}, "UnicodeScripts");
  expect_named("/decoder", {{"type", "WordPiece"}}, "WordPiece");
  expect_named("/post_processor", {{"type", "BertProcessing"}}, "BertProcessing");
}

TEST(HostileFilesTest, BadRegularExpressionsAreDataLoss) {
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  ExpectRefused(LoadChanged("/pre_tokenizer", split), StatusCode::kDataLoss, "(a");
  const json replace = {{"type", "Replace"}, {"pattern", {{"Regex", "[a"}}}, {"content", ""}};
  ExpectRefused(LoadChanged("/normalizer", replace), StatusCode::kDataLoss, "[a");
}

TEST(HostileFilesTest, ExpressionsThatExplodeAreErrorsOfTheText) {
  ScratchFolder folder;
  const json pattern = {{"Regex", "(a+)+$"}};
  const std::pair<const char*, json> cases[] = {
      {"normalizer", {{"type", "Replace"}, {"pattern", pattern}, {"content", "b"}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", pattern}, {"behavior", "MergedWithNext"}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}}}};
  for (const auto& [section, value] : cases) {
    json file = ByteLevelSample();
    file[section] = value;
    ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", file.dump()).ok());
    const auto tokenizer = Tokenizer::Load(folder.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::string text = "the lathe " + std::string(100, 'a') + "b";
    ExpectRefused((*tokenizer)->TryTokenize(text, false).status(), StatusCode::kInvalidArgument,
                  "\"(a+)+$\" gives up at byte");
    EXPECT_TRUE((*tokenizer)->TryTokenize("the lathe", false).ok());
  }
}

TEST(HostileFilesTest, SequencesInSequencesHaveAnEnd) {
  json nested = {{"type", "Digits"}};
  for (int i = 0; i < 100; ++i) {
    nested = {{"type", "Sequence"}, {"pretokenizers", json::array({nested})}};
  }
  ExpectRefused(LoadChanged("/pre_tokenizer", nested), StatusCode::kUnimplemented, "Sequence");
}

TEST(HostileFilesTest, TooManyPreTokenizersAreRefused) {
  const json digits = {{"type", "Digits"}};
  const json sequence = {{"type", "Sequence"}, {"pretokenizers", json(5000, digits)}};
  ExpectRefused(LoadChanged("/pre_tokenizer", sequence), StatusCode::kUnimplemented, "steps");
}

json Replace(const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

TEST(HostileFilesTest, StepsThatGrowATextWithoutBoundAreRefused) {
  const std::string letters(100000, 'a');
  const json metaspace = {{"type", "Metaspace"}, {"replacement", letters}};
  const std::pair<const char*, json> cases[] = {
      {"/normalizer", Replace("a", letters)},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", letters}}},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", json(20, Replace("a", "aa"))}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", letters}}},
      {"/pre_tokenizer", metaspace},
      {"/decoder", Replace("a", letters)},
      {"/decoder", {{"type", "Sequence"}, {"decoders", json(20, Replace("a", "aa"))}}}};
  for (const auto& [pointer, value] : cases) {
    ExpectRefused(LoadChanged(pointer, value), StatusCode::kUnimplemented, "256 times as long");
  }
  ExpectRefused(LoadChanged("/normalizer", Replace(letters, "a")), StatusCode::kUnimplemented,
                "pattern of 100000 bytes");
  const json many = {{"type", "Sequence"}, {"normalizers", json(5000, Replace("a", "b"))}};
  ExpectRefused(LoadChanged("/normalizer", many), StatusCode::kUnimplemented,
                "32 normalizer steps");
}

// The work of all later steps is counted in bytes of normalised text.
TEST(HostileFilesTest, TheLongestNormalizedTextIs256TimesTheText) {
  Normalizer normalizer;
  ASSERT_TRUE(normalizer.AddStep(PrependStep{std::string(15, 'a')}).ok());
  ASSERT_TRUE(normalizer.AddStep(ReplaceStep{"a", std::string(16, 'b')}).ok());
  EXPECT_FALSE(normalizer.AddStep(ReplaceStep{"c", "cc"}).ok());
  RegexScratch scratch;
  EXPECT_EQ(normalizer.Apply("a", &scratch).size(), 256u);
  EXPECT_EQ(normalizer.Apply(std::string(100000, 'a'), &scratch).size(), 16 * 100015u);
}

TEST(HostileFilesTest, WrongTypesNeverThrow) {
  int n_refused = 0, n_tried = 0;
  for (const json& value : {json(7), json("x"), json::array(), json::object(), json(true)}) {
    for (const char* pointer :
         {"/model", "/model/type", "/model/vocab", "/model/merges", "/model/unk_token",
          "/model/byte_fallback", "/added_tokens", "/added_tokens/0", "/added_tokens/0/special",
          "/normalizer", "/pre_tokenizer", "/pre_tokenizer/type", "/post_processor", "/decoder"}) {
      n_refused += !LoadChanged(pointer, value).ok();
      ++n_tried;
    }
  }
  // Empty lists and a flag that is true are fine in places; the rest is not.
  EXPECT_GE(n_refused, n_tried - 8);
}

TEST(HostileFilesTest, TokenizerModelMustBeOneOfTheTwoFormats) {
  for (const std::string& contents :
       {std::string(), std::string("hello"), std::string("\x0A\xFF\xFF\xFF\xFF\x0F"),
        SentencePieceSample().substr(0, 1000), std::string(5000, '\0')}) {
    ExpectRefused(LoadFile("tokenizer.model", contents), StatusCode::kDataLoss, "tokenizer.model");
  }
  ExpectRefused(LoadFile("tokenizer.model", "IQ== 0\nIQ== 1\n"), StatusCode::kDataLoss, "two ids");
  ExpectRefused(LoadFile("tokenizer.model", "IQ== 0\nIg== 99999999999\n"), StatusCode::kDataLoss,
                "id 99999999999");
  ExpectRefused(LoadFile("tokenizer.model", "IQ== 0\n??\n"), StatusCode::kDataLoss, "line 2");
}

TEST(HostileFilesTest, MalformedSettingsAreNamed) {
  ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", ByteLevelSample().dump()).ok());
  for (const json& settings :
       {json{{"add_bos_token", "yes"}}, json{{"bos_token", 5}},
        json{{"added_tokens_decoder", {{"x", {{"content", "<a>"}}}}}},
        json{{"added_tokens_decoder", {{"5", {{"content", "<a>"}}}}}}, json::array()}) {
    ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer_config.json", settings.dump()).ok());
    ExpectRefused(Tokenizer::Load(folder.path()).status(), StatusCode::kDataLoss,
                  "tokenizer_config.json");
  }
}

TEST(HostileFilesTest, MissingFilesAreNotFound) {
  ScratchFolder folder;
  ExpectRefused(Tokenizer::Load(folder.path()).status(), StatusCode::kNotFound, "tokenizer.json");
  ExpectRefused(Tokenizer::Load(folder / "none").status(), StatusCode::kNotFound, "none");
}

}  // namespace
}  // namespace kvlathe
