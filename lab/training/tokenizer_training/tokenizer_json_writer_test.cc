#include "training/tokenizer_training/tokenizer_json_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/sample_tokenizers.h"
#include "tokenizer/tokenizer.h"
#include "training/tokenizer_training/tokenizer_training.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = SentencePieceModel::Kind;

// A model with these pieces, best first, after <unk>, <s> and </s>.
SentencePieceModel ModelOf(const std::vector<std::string>& pieces) {
  SentencePieceModel model;
  model.is_bpe = model.byte_fallback = true;
  model.remove_extra_whitespaces = false;
  model.pieces = {
      {"<unk>", 0, Kind::kUnknown}, {"<s>", 0, Kind::kControl}, {"</s>", 0, Kind::kControl}};
  for (const std::string& piece : pieces) {
    model.pieces.push_back({piece, -static_cast<float>(model.pieces.size()), Kind::kNormal});
  }
  return model;
}

nlohmann::json JsonOf(const SentencePieceModel& model) {
  const auto text = TokenizerJsonOf(model);
  EXPECT_TRUE(text.ok()) << MessageOf(text.status());
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
}

std::string RefusalOf(const SentencePieceModel& model) {
  const Status status = TokenizerJsonOf(model).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  return MessageOf(status);
}

TEST(TokenizerJsonWriter, AMergeIsTheOneThatFormsThePiece) {
  // "abc" could be ab + c, but bc is formed first.
  EXPECT_THAT(JsonOf(ModelOf({"bc", "ab", "abc", "a", "b", "c"}))["model"]["merges"],
              ElementsAre("b c", "a b", "a bc"));
  EXPECT_THAT(JsonOf(ModelOf({"ab", "bc", "abc", "a", "b", "c"}))["model"]["merges"],
              ElementsAre("a b", "b c", "ab c"));
  // Among equals the leftmost is first: aa + a, not a + aa; "aaaa" is two pairs.
  EXPECT_THAT(JsonOf(ModelOf({"aa", "aaa", "aaaa", "a"}))["model"]["merges"],
              ElementsAre("a a", "aa a", "aa aa"));
  // Characters of several bytes.
  EXPECT_THAT(JsonOf(ModelOf({"\u2581\u00E9", "\u2581", "\u00E9"}))["model"]["merges"],
              ElementsAre("\u2581 \u00E9"));
}

TEST(TokenizerJsonWriter, APieceOutOfReachHasNoMerge) {
  // Neither xy nor yz is a piece.
  EXPECT_THAT(JsonOf(ModelOf({"xyz", "x", "y", "z"}))["model"]["merges"], ElementsAre());
  // In "abcd" alone, cd is formed before abc.
  EXPECT_THAT(JsonOf(ModelOf({"ab", "cd", "abc", "abcd", "a", "b", "c", "d"}))["model"]["merges"],
              ElementsAre("a b", "c d", "ab c", "ab cd"));
}

TEST(TokenizerJsonWriter, MergesFollowTheScoresNotTheIds) {
  SentencePieceModel model = ModelOf({"ab", "bc", "a", "b", "c"});
  std::swap(model.pieces[3].score, model.pieces[4].score);
  EXPECT_THAT(JsonOf(model)["model"]["merges"], ElementsAre("b c", "a b"));
}

TEST(TokenizerJsonWriter, SectionsAreThoseOfALlamaTokenizer) {
  const nlohmann::json file = JsonOf(ModelOf({"ab", "a", "b", "\n"}));
  EXPECT_EQ(file["model"]["type"], "BPE");
  EXPECT_EQ(file["model"]["byte_fallback"], true);
  EXPECT_EQ(file["model"]["unk_token"], "<unk>");
  EXPECT_EQ(file["model"]["vocab"]["ab"], 3);
  EXPECT_EQ(file["model"]["vocab"]["\n"], 6);
  EXPECT_EQ(file["added_tokens"].size(), 3u);
  EXPECT_EQ(file["added_tokens"][2]["content"], "</s>");
  EXPECT_EQ(file["added_tokens"][2]["id"], 2);
  EXPECT_EQ(file["normalizer"]["normalizers"][0]["prepend"], "\u2581");
  EXPECT_EQ(file["post_processor"]["special_tokens"]["<s>"]["ids"], nlohmann::json({1}));
  EXPECT_EQ(file["decoder"]["decoders"][3]["type"], "Strip");
}

TEST(TokenizerJsonWriter, WithoutASpaceInFrontNothingIsPrependedOrStripped) {
  SentencePieceModel model = ModelOf({"ab", "a", "b"});
  model.add_dummy_prefix = false;
  const nlohmann::json file = JsonOf(model);
  EXPECT_EQ(file["normalizer"]["normalizers"].size(), 1u);
  EXPECT_EQ(file["decoder"]["decoders"].size(), 3u);
}

TEST(TokenizerJsonWriter, RefusesByNameWhatHasNoEqual) {
  SentencePieceModel model = ModelOf({"a"});
  model.is_bpe = false;
  EXPECT_THAT(RefusalOf(model), HasSubstr("other than BPE"));
  model = ModelOf({"a"});
  model.byte_fallback = false;
  EXPECT_THAT(RefusalOf(model), HasSubstr("byte fallback"));
  model = ModelOf({"a"});
  model.has_rules = true;
  EXPECT_THAT(RefusalOf(model), HasSubstr("normalisation"));
  model = ModelOf({"a"});
  model.remove_extra_whitespaces = true;
  EXPECT_THAT(RefusalOf(model), HasSubstr("extra white space"));
  model = ModelOf({"a"});
  model.escape_whitespaces = false;
  EXPECT_THAT(RefusalOf(model), HasSubstr("not escaped"));
  model = ModelOf({"a"});
  model.whitespace_is_suffix = true;
  EXPECT_THAT(RefusalOf(model), HasSubstr("suffix"));
  model = ModelOf({"a"});
  model.pieces.push_back({"[NAME]", 0, Kind::kUserDefined});
  EXPECT_THAT(RefusalOf(model), HasSubstr("[NAME]"));
  model = ModelOf({"a", std::string(1000, 'a')});
  EXPECT_THAT(RefusalOf(model), HasSubstr("1000 bytes"));
  model = ModelOf({"ab", "ba", "a", "b"});
  model.pieces[4].score = model.pieces[3].score;
  EXPECT_THAT(RefusalOf(model), HasSubstr("one score"));
}

TEST(SentencePieceModel, ReadsWhatTheFileSays) {
  const auto model = SentencePieceModel::Parse(SentencePieceSample());
  ASSERT_TRUE(model.ok()) << MessageOf(model.status());
  EXPECT_TRUE(model->is_bpe);
  EXPECT_TRUE(model->byte_fallback);
  EXPECT_TRUE(model->add_dummy_prefix);
  EXPECT_TRUE(model->escape_whitespaces);
  EXPECT_FALSE(model->remove_extra_whitespaces);
  EXPECT_FALSE(model->has_rules);
  EXPECT_FALSE(model->whitespace_is_suffix);
  ASSERT_GT(model->pieces.size(), 259u);
  EXPECT_EQ(model->pieces[0].kind, Kind::kUnknown);
  EXPECT_EQ(model->pieces[1].kind, Kind::kControl);
  EXPECT_EQ(model->pieces[3].kind, Kind::kByte);
  EXPECT_EQ(model->pieces[3].text, "<0x00>");
  EXPECT_EQ(model->pieces[259].kind, Kind::kNormal);
  EXPECT_EQ(model->pieces[259].score, -259.0f);
}

TEST(SentencePieceModel, TakesDamagedFilesWithoutHarm) {
  const std::string whole = SentencePieceSample();
  for (size_t n_bytes = 0; n_bytes < whole.size(); n_bytes += n_bytes < 200 ? 1 : 97) {
    const auto model = SentencePieceModel::Parse(whole.substr(0, n_bytes));
    if (!model.ok()) {
      EXPECT_EQ(model.status().code(), StatusCode::kDataLoss);
    }
  }
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = whole.substr(0, 4000);
    for (int j = 0; j < 4; ++j) {
      damaged[random.Below(damaged.size())] = static_cast<char>(random.Below(256));
    }
    const auto model = SentencePieceModel::Parse(damaged);
    if (model.ok()) TokenizerJsonOf(*model).IgnoreError();
  }
  for (const std::string_view text : {"", "plain text", "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F",
                                      "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"}) {
    EXPECT_EQ(SentencePieceModel::Parse(text).status().code(), StatusCode::kDataLoss);
  }
}

// The ids of a model file equal those of the tokenizer.json that is made of it.
TEST(TokenizerJsonOfSentencePiece, GivesTheTokensOfTheModelFile) {
  const std::string nano = std::string(KVLATHE_SOURCE_DIR) + "/models/lathe-nano/";
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "model");
  std::filesystem::create_directories(folder / "json");
  const std::string sample = *ReadTextFile(nano + "sample.txt");
  for (const std::string& contents :
       {SentencePieceSample(), *ReadTextFile(nano + "tokenizer.model")}) {
    const std::string path = folder / "model/tokenizer.model";
    ASSERT_TRUE(WriteFileAtomically(path, contents).ok());
    const auto json = TokenizerJsonOfSentencePiece(path);
    ASSERT_TRUE(json.ok()) << MessageOf(json.status());
    ASSERT_TRUE(WriteFileAtomically(folder / "json/tokenizer.json", *json).ok());
    const auto from_model = Tokenizer::Load(folder / "model");
    const auto from_json = Tokenizer::Load(folder / "json");
    ASSERT_TRUE(from_model.ok()) << MessageOf(from_model.status());
    ASSERT_TRUE(from_json.ok()) << MessageOf(from_json.status());
    for (const std::string& text :
         {sample, SampleText(20000), std::string("  a  b \n\n 17\t\u00E9")}) {
      EXPECT_EQ((*from_model)->Tokenize(text, true), (*from_json)->Tokenize(text, true));
    }
  }
}

TEST(TokenizerJsonOfSentencePiece, NamesTheFileItCannotRead) {
  const ScratchFolder folder;
  const std::string path = folder / "tokenizer.model";
  EXPECT_EQ(TokenizerJsonOfSentencePiece(path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(path, "no model").ok());
  const Status status = TokenizerJsonOfSentencePiece(path).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(status), HasSubstr(path));
}

}  // namespace
}  // namespace kvlathe
