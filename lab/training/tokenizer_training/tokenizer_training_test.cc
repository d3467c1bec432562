#include "training/tokenizer_training/tokenizer_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/random.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int kVocabSize = 1024;
const std::string kNano = std::string(KVLATHE_SOURCE_DIR) + "/models/lathe-nano/";

const char* const kFileNames[] = {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"};

// One tokenizer for all tests, loaded from either of its forms.
class TrainedTokenizerTest : public testing::Test {
 protected:
  // Once, in the first test: a scratch folder is named after the test that is running.
  void SetUp() override {
    if (folder_ == nullptr) TrainOnce();
    ASSERT_TRUE(model_ != nullptr && json_ != nullptr);
  }
  static void TrainOnce() {
    folder_ = new ScratchFolder;
    const std::vector<std::string> texts = {kNano + "calibration.txt", *folder_ / "more.txt"};
    ASSERT_TRUE(WriteFileAtomically(texts[1], MoreText()).ok());
    const Status status = TrainTokenizer(texts, {.vocab_size = kVocabSize}, *folder_ / "both");
    ASSERT_TRUE(status.ok()) << MessageOf(status);
    model_ = LoadForm("tokenizer.model");
    json_ = LoadForm("tokenizer.json");
  }
  static void TearDownTestSuite() {
    model_.reset();
    json_.reset();
    delete folder_;
    folder_ = nullptr;
  }

  // Code, numbers, runs of one character, other scripts.
  static std::string MoreText() {
    std::string text = "\u00E9t\u00E9 na\u00EFve \U0001F600 \u6F22\u5B57\n\tx = 0\r\n";
    for (int i = 0; i < 400; ++i) {
      text += fmt::format("for (int i = {0}; i < {1}; ++i) {{ total += rows[i]; }}  -- {2}\n", i,
                          i * 7, std::string(i % 9, '='));
    }
    return text;
  }

  static std::unique_ptr<Tokenizer> LoadForm(const std::string& name) {
    const std::string form = *folder_ / ("only-" + name);
    std::filesystem::create_directories(form);
    for (const std::string& file : {name, std::string("tokenizer_config.json")}) {
      std::filesystem::copy_file(*folder_ / ("both/" + file), form + "/" + file);
    }
    auto tokenizer = Tokenizer::Load(form);
    EXPECT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }

  // The tokens, after a check that both forms agree on them and give the text back.
  static std::vector<int32_t> TokensOf(const std::string& text) {
    const std::vector<int32_t> ids = model_->Tokenize(text, /*add_bos=*/false);
    EXPECT_EQ(ids, json_->Tokenize(text, /*add_bos=*/false)) << "text: \"" << text << "\"";
    EXPECT_EQ(model_->Detokenize(ids), text);
    EXPECT_EQ(json_->Detokenize(ids), text);
    return ids;
  }

  static inline ScratchFolder* folder_ = nullptr;
  static inline std::unique_ptr<Tokenizer> model_;
  static inline std::unique_ptr<Tokenizer> json_;
};

TEST_F(TrainedTokenizerTest, BothFormsAgreeOnWholeTexts) {
  TokensOf(*ReadTextFile(kNano + "calibration.txt"));
  TokensOf(*ReadTextFile(kNano + "sample.txt"));
  TokensOf(MoreText());
}

TEST_F(TrainedTokenizerTest, BothFormsAgreeOnSpacesAndRuns) {
  for (const char* text :
       {"", " ", "  ", "\n", "\n\n", " \n ", "a", " a", "  a", "a ", "a  b", "\t", "\r\n", "x\n\ny",
        " leading", "trailing ", "a\u00A0b", "\u2003", "'\"\"'"}) {
    TokensOf(text);
  }
  for (const char* unit : {"a", "-", "=", ".", " ", "\n", "s", "0", "an", "=-", "\U0001F600"}) {
    std::string run;
    for (int i = 0; i < 70; ++i) TokensOf(run += unit);
  }
}

TEST_F(TrainedTokenizerTest, BothFormsAgreeOnRandomTexts) {
  const std::vector<std::string> parts = {
      " ",     "  ", "\n", "\t", "a",      "e",      "the",
      " the",  "-",  "--", "=",  "==",     "\u00E9", "\U0001F468\u200D\U0001F469",
      "0",     "9",  "an", "in", "\u0301", "\u6F22", "\r",
      "; ++i)"};
  Random random(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(30); n > 0; --n) text += parts[random.Below(parts.size())];
    TokensOf(text);
  }
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(40); n > 0; --n) {
      const uint64_t code = random.Below(n % 2 == 0 ? 0x250 : 0x1F700);
      // Neither surrogates nor U+2581, which stands for a space.
      if (code == 0 || (code >= 0xD800 && code < 0xE000) || code == 0x2581) continue;
      AppendUtf8(static_cast<char32_t>(code), &text);
    }
    TokensOf(text);
  }
}

TEST_F(TrainedTokenizerTest, HasTheTokensThatItPromises) {
  EXPECT_EQ(model_->vocab_size(), kVocabSize);
  EXPECT_EQ(json_->vocab_size(), kVocabSize);
  for (const Tokenizer* tokenizer : {model_.get(), json_.get()}) {
    EXPECT_EQ(tokenizer->TokenBytes(0, /*keep_special=*/true), "<unk>");
    EXPECT_EQ(tokenizer->bos_id(), 1);
    EXPECT_EQ(tokenizer->eos_id(), 2);
    EXPECT_EQ(tokenizer->TokenBytes(3), std::string(1, '\0'));
    EXPECT_EQ(tokenizer->TokenBytes(258), "\xFF");
    EXPECT_EQ(tokenizer->Tokenize("", /*add_bos=*/true), std::vector<int32_t>{1});
  }
  // "the" is among the first words that any English text teaches.
  EXPECT_THAT(TokensOf("the"), SizeIs(1));
  EXPECT_THAT(TokensOf("the the"), SizeIs(2));
}

TEST_F(TrainedTokenizerTest, ANewlineIsOneTokenAndPartOfNoOther) {
  const std::vector<int32_t> ids = TokensOf("a\n\nb");
  ASSERT_THAT(ids, SizeIs(4));
  EXPECT_EQ(ids[1], ids[2]);
  EXPECT_GT(ids[1], 258) << "a piece, no byte";
  int n_with_newline = 0;
  for (int id = 259; id < kVocabSize; ++id) {
    n_with_newline += model_->TokenBytes(id).find('\n') != std::string::npos;
  }
  EXPECT_EQ(n_with_newline, 1);
}

TEST_F(TrainedTokenizerTest, DigitsStandAlone) {
  // The space, then six digits.
  EXPECT_THAT(TokensOf("481770"), SizeIs(7));
  for (int id = 259; id < kVocabSize; ++id) {
    const std::string bytes = model_->TokenBytes(id);
    if (bytes.find_first_of("0123456789") != std::string::npos) {
      EXPECT_EQ(bytes.size(), 1u) << bytes;
    }
  }
}

TEST_F(TrainedTokenizerTest, AContinuationHasTheTokensThatItHasInTheWholeText) {
  for (const char* prompt : {"The pass key is", "Question: what?\nAnswer:", "x ="}) {
    for (const char* answer : {"48213", "the mill", "Emma", "-7", "\u00E9t\u00E9"}) {
      std::vector<int32_t> joined = TokensOf(prompt);
      const std::vector<int32_t> tail = TokensOf(answer);
      joined.insert(joined.end(), tail.begin(), tail.end());
      EXPECT_EQ(joined, TokensOf(std::string(prompt) + " " + answer));
    }
  }
}

class TrainTokenizerTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    const std::string path = folder_ / name;
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return path;
  }
  Status Train(const std::vector<std::string>& texts, const TokenizerTrainingOptions& options) {
    return TrainTokenizer(texts, options, folder_ / "out");
  }
  // That of a training which has to fail; nothing may be left in the folder.
  Status FailureOf(const std::vector<std::string>& texts, const TokenizerTrainingOptions& options) {
    const Status status = Train(texts, options);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("\n")));
    std::error_code none;
    if (std::filesystem::exists(folder_ / "out")) {
      EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out", none));
    }
    return status;
  }

  ScratchFolder folder_;
};

TEST_F(TrainTokenizerTest, TheSameTextsGiveTheSameBytes) {
  const std::vector<std::string> texts = {kNano + "sample.txt", kNano + "calibration.txt"};
  std::vector<std::string> first;
  ASSERT_TRUE(Train(texts, {.vocab_size = 900}).ok());
  for (const char* name : kFileNames) first.push_back(*ReadTextFile(folder_ / "out/" + name));
  // Over what is there.
  ASSERT_TRUE(Train(texts, {.vocab_size = 900}).ok());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i], *ReadTextFile(folder_ / "out/" + kFileNames[i])) << kFileNames[i];
  }
  ASSERT_TRUE(Train(texts, {.vocab_size = 900, .threads = 5}).ok());
  EXPECT_EQ(first[1], *ReadTextFile(folder_ / "out/tokenizer.json"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "out"), {}), 3);
}

TEST_F(TrainTokenizerTest, NumbersMayBeLearntWhole) {
  std::string text = *ReadTextFile(kNano + "sample.txt");
  for (int i = 0; i < 300; ++i) text += "1842\n";
  ASSERT_TRUE(Train({Write("t.txt", text)}, {.vocab_size = 900, .split_digits = false}).ok());
  const auto tokenizer = Tokenizer::Load(folder_ / "out");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT((*tokenizer)->Tokenize("1842", false), SizeIs(1));
  EXPECT_THAT((*tokenizer)->Tokenize("\n", false), SizeIs(2));
}

TEST_F(TrainTokenizerTest, TakesAnyBytesAndLinesOfAnyLength) {
  Random random(3);
  std::string text = *ReadTextFile(kNano + "sample.txt");
  std::replace(text.begin(), text.end(), '\n', ' ');
  text += std::string(200000, 'w') + std::string(9000, ' ');
  text += "\u2581 \u2047 \u2585 \uFFFD <s>\t<unk>";
  for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>(random.Below(256)));
  const Status status = Train({Write("t.txt", text)}, {.vocab_size = 1000});
  ASSERT_TRUE(status.ok()) << MessageOf(status);
  const auto tokenizer = Tokenizer::Load(folder_ / "out");
  ASSERT_TRUE(tokenizer.ok());
  const std::string ill_formed =
      "a\x80"
      "b\xE2\x82 c";
  EXPECT_EQ((*tokenizer)->Detokenize((*tokenizer)->Tokenize(ill_formed, false)), ill_formed);
}

TEST_F(TrainTokenizerTest, RefusesTextsItCannotLearnFrom) {
  Status status = FailureOf({folder_ / "absent.txt"}, {});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("absent.txt"));
  EXPECT_THAT(MessageOf(FailureOf({}, {})), HasSubstr("no text"));
  status = FailureOf({Write("empty.txt", ""), Write("blank.txt", "\n\n\t\n")}, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("no text"));
  status = FailureOf({Write("short.txt", "a few words only\n")}, {.vocab_size = 4096});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("Vocabulary size too high (4096)"));
  std::string many;
  for (char32_t code = 0x4E00; code < 0x5400; ++code) AppendUtf8(code, &many);
  status = FailureOf({Write("many.txt", many)}, {.vocab_size = 600});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(status), HasSubstr("smaller than required_chars"));
}

TEST_F(TrainTokenizerTest, RefusesOptionsOutOfRangeByName) {
  const std::vector<std::string> texts = {kNano + "sample.txt"};
  const auto message_of = [&](const TokenizerTrainingOptions& options) {
    const Status status = FailureOf(texts, options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return MessageOf(status);
  };
  EXPECT_THAT(message_of({.vocab_size = 511}), HasSubstr("vocab_size is 511"));
  EXPECT_THAT(message_of({.vocab_size = 65537}), HasSubstr("vocab_size"));
  EXPECT_THAT(message_of({.character_coverage = 0.5}), HasSubstr("character_coverage"));
  EXPECT_THAT(message_of({.character_coverage = std::nan("")}), HasSubstr("character_coverage"));
  EXPECT_THAT(message_of({.max_text_bytes = 100}), HasSubstr("max_text_bytes"));
  EXPECT_THAT(message_of({.threads = 0}), HasSubstr("threads"));
}

TEST_F(TrainTokenizerTest, AFolderThatTakesNoFileIsAnErrorBeforeTheTraining) {
  const std::string file = Write("file", "");
  const std::vector<std::string> absent = {folder_ / "absent.txt"};
  const Status status = TrainTokenizer(absent, {}, file + "/out");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(MessageOf(status), HasSubstr(file + "/out"));
  std::filesystem::create_directories(folder_ / "taken/tokenizer.json");
  EXPECT_THAT(MessageOf(TrainTokenizer(absent, {}, folder_ / "taken")),
              HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace kvlathe
