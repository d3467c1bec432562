#include <gtest/gtest.h>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/sample_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

class StreamingTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const bool is_model = GetParam() == "sentencepiece";
    const std::string contents = is_model                     ? SentencePieceSample()
                                 : GetParam() == "byte level" ? ByteLevelSample().dump()
                                                              : CharLevelSample().dump();
    const std::string path = folder_ / (is_model ? "tokenizer.model" : "tokenizer.json");
    ASSERT_TRUE(WriteFileAtomically(path, contents).ok());
    auto tokenizer = Tokenizer::Load(folder_.path());
    ASSERT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
    tokenizer_ = *std::move(tokenizer);
  }

  std::vector<int32_t> Ids(std::string_view text) {
    return tokenizer_->Tokenize(text, /*add_bos=*/false);
  }

  // The token of one byte, without the space that some models put in front.
  int32_t ByteId(char byte) { return Ids({&byte, 1}).back(); }

  ScratchFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

bool IsWellFormed(const std::string& text) { return EndOfWellFormedRun(text, 0) == text.size(); }

TEST_P(StreamingTest, NeverSplitsACharacter) {
  // Characters of two, three and four bytes; each token is one byte of them.
  const std::string text = "the lathe \u00E9\u0436 \u20AC\u4E2D \U0001F999\U0010FFFF turns";
  StreamingDetokenizer stream(tokenizer_.get());
  std::string streamed;
  int n_silent = 0;
  for (const int32_t id : Ids(text)) {
    const std::string part = stream.Push(id);
    ASSERT_TRUE(IsWellFormed(part)) << part;
    n_silent += part.empty();
    streamed += part;
  }
  EXPECT_EQ(streamed + stream.Finish(), text);
  // All bytes but the last of each of the six characters: 1 + 1 + 2 + 2 + 3 + 3.
  EXPECT_GE(n_silent, 12);
}

TEST_P(StreamingTest, EveryPrefixOfACharacterBecomesOneReplacement) {
  const std::string character = "\U0001F999";
  for (size_t n_bytes = 1; n_bytes < character.size(); ++n_bytes) {
    StreamingDetokenizer stream(tokenizer_.get(), {.continues_text = true});
    std::string streamed;
    for (const char byte : character.substr(0, n_bytes)) {
      streamed += stream.Push(ByteId(byte));
    }
    EXPECT_EQ(streamed, "");
    EXPECT_EQ(stream.Finish(), kReplacementChar);
    EXPECT_EQ(stream.Finish(), "");
  }
}

TEST_P(StreamingTest, IllFormedBytesBecomeReplacementsAtOnce) {
  StreamingDetokenizer stream(tokenizer_.get(), {.continues_text = true});
  std::string streamed;
  for (const char byte : {'\xE2', '\x82'}) streamed += stream.Push(ByteId(byte));
  EXPECT_EQ(streamed, "");
  streamed += stream.Push(ByteId('\xFF'));
  EXPECT_EQ(streamed, std::string(kReplacementChar) + std::string(kReplacementChar));
}

TEST_P(StreamingTest, LeadingSpaceStaysWhenTextContinues) {
  const std::vector<int32_t> ids = Ids(GetParam() == "byte level" ? " copper" : "copper");
  StreamingDetokenizer continued(tokenizer_.get(), {.continues_text = true});
  std::string text;
  for (const int32_t id : ids) text += continued.Push(id);
  EXPECT_EQ(text, " copper");
}

INSTANTIATE_TEST_SUITE_P(All, StreamingTest,
                         testing::Values("byte level", "char level", "sentencepiece"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace kvlathe
