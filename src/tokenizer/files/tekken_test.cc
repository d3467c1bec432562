// tekken.json: ids behind the special tokens, and files that are damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr int kNSpecials = 30;

// All bytes, then some words; ranks behind 256 + 6 are beyond the vocabulary's size.
json TekkenSample() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {" l", "at", "he", " lathe", "the", "\u00E9", "beyond", "it"}) {
    tokens.emplace_back(word);
  }
  json vocab = json::array();
  for (const std::string& token : tokens) {
    const std::string encoded = absl::Base64Escape(token);
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", encoded}, {"token_str", nullptr}});
  }
  const std::string pattern(FindPreTokenizer("tekken")->patterns[0]);
  return {{"config",
           {{"pattern", pattern},
            {"num_vocab_tokens", tokens.size()},
            {"default_vocab_size", 256 + 6 + kNSpecials},
            {"default_num_special_tokens", kNSpecials},
            {"version", "v3"}}},
          {"vocab", std::move(vocab)}};
}

class TekkenTest : public testing::Test {
 protected:
  StatusOr<std::unique_ptr<Tokenizer>> Load(const json& file) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / "tekken.json", file.dump()).ok());
    return Tokenizer::Load(folder_.path());
  }
  // The sample with one JSON pointer changed.
  void ExpectRefused(const char* pointer, const json& value, std::string_view part) {
    json file = TekkenSample();
    file[json::json_pointer(pointer)] = value;
    const Status status = Load(file).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << pointer << " " << value << ": " << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(folder_ / "tekken.json"));
    EXPECT_THAT(MessageOf(status), HasSubstr(std::string(part)));
  }

  ScratchFolder folder_;
};

TEST_F(TekkenTest, IdsAreRanksBehindTheSpecialTokens) {
  const auto tokenizer = Load(TekkenSample());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  constexpr int kWord = 256 + kNSpecials;
  EXPECT_EQ((*tokenizer)->vocab_size(), kWord + 6);
  EXPECT_EQ((*tokenizer)->Tokenize(" lathe", false), Ids{kWord + 3});
  // "he" ranks before "the"; "it" is beyond the vocabulary's size.
  EXPECT_EQ((*tokenizer)->Tokenize("at\u00E9it", false),
            (Ids{kWord + 1, kWord + 5, 'i' + kNSpecials, 't' + kNSpecials}));
  const std::string text = "It's \xFF 12\n\u4E2D <s>";
  EXPECT_EQ((*tokenizer)->Detokenize((*tokenizer)->Tokenize(text, true, false)), text);
}

TEST_F(TekkenTest, FilesOfTheFirstVersionsHaveTheirSpecialTokensByPlace) {
  const auto tokenizer = Load(TekkenSample());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_EQ((*tokenizer)->Tokenize("[INST][TOOL_CONTENT]<SPECIAL_29></s>", true),
            (Ids{1, 3, 19, 29, 2}));
  EXPECT_EQ((*tokenizer)->Tokenize("[INST]", false, false).size(), 6u);
  EXPECT_EQ((*tokenizer)->TokenBytes(3), "");
  EXPECT_EQ((*tokenizer)->TokenBytes(3, /*keep_special=*/true), "[INST]");
}

TEST_F(TekkenTest, LaterFilesNameThem) {
  json file = TekkenSample();
  file["config"]["version"] = "v13";
  file["special_tokens"] = json::array();
  for (const char* name : {"<unk>", "<s>", "</s>", "[THINK]"}) {
    file["special_tokens"].push_back(
        {{"rank", file["special_tokens"].size()}, {"token_str", name}, {"is_control", true}});
  }
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Tokenize("[THINK]<SPECIAL_4>", true), (Ids{1, 3, 4}));
  EXPECT_EQ((*tokenizer)->Tokenize("[INST]", false).size(), 6u);
}

TEST_F(TekkenTest, TokenizerJsonIsPreferred) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "tokenizer.json", "{}").ok());
  EXPECT_THAT(MessageOf(Load(TekkenSample()).status()), HasSubstr("tokenizer.json"));
}

TEST_F(TekkenTest, DamagedFilesAreRefused) {
  ExpectRefused("/config", 7, "no \"config\" object");
  ExpectRefused("/config/pattern", "", "\"pattern\" is empty");
  ExpectRefused("/config/pattern", "(a", "regular expression \"(a\"");
  ExpectRefused("/config/default_vocab_size", -5, "\"default_vocab_size\" is -5");
  ExpectRefused("/config/default_vocab_size", int64_t{1} << 40, "\"default_vocab_size\" is 1099");
  ExpectRefused("/config/default_vocab_size", 400, "\"vocab\" has 264 tokens, fewer than 370");
  ExpectRefused("/config/default_num_special_tokens", -1, "\"default_num_special_tokens\" is -1");
  ExpectRefused("/config/default_num_special_tokens", 1000, "is 1000, not a number from 0 to 292");
  ExpectRefused("/config/default_num_special_tokens", "30", "is \"30\"");
  ExpectRefused("/vocab", json::object(), "\"vocab\" is not a list");
  ExpectRefused("/vocab/5/rank", 6, "token 5 of \"vocab\" has the rank 6");
  ExpectRefused("/vocab/5/rank", -5, "token 5 of \"vocab\" has the rank -5");
  ExpectRefused("/vocab/5", nullptr, "token 5 of \"vocab\" has the rank null");
  ExpectRefused("/vocab/5/token_bytes", "?", "token 5: \"token_bytes\" is not base64");
  ExpectRefused("/vocab/5/token_bytes", "", "token 5: \"token_bytes\" is not base64");
  ExpectRefused("/vocab/5/token_bytes", 5, "\"token_bytes\" is not a string");
  ExpectRefused("/vocab/5/token_bytes", absl::Base64Escape(std::string(2000, 'a')), "token 5");
  ExpectRefused("/vocab/5/token_bytes", "AA==", "two ids");
  ExpectRefused("/special_tokens", 3, "\"special_tokens\" is not a list");
  ExpectRefused("/special_tokens", {{{"rank", 30}, {"token_str", "<s>"}}},
                "\"<s>\": \"rank\" is 30");
  ExpectRefused("/special_tokens", {{{"rank", -1}, {"token_str", "<s>"}}}, "\"rank\" is -1");
  ExpectRefused("/special_tokens", {{{"rank", 1}}}, "no \"token_str\"");
}

TEST_F(TekkenTest, AnExpressionThatExplodesIsAnErrorOfTheText) {
  json file = TekkenSample();
  file["config"]["pattern"] = "(a+)+$";
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->TryTokenize("aaaa", false).ok());
  const std::string text = std::string(100, 'a') + "b";
  const Status status = (*tokenizer)->TryTokenize(text, false).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("\"(a+)+$\" gives up at byte 0 of 101"));
  EXPECT_EQ((*tokenizer)->Tokenize(text, false), Ids{});
  EXPECT_TRUE((*tokenizer)->TryTokenize("aaaa", false).ok());
}

}  // namespace
}  // namespace kvlathe
