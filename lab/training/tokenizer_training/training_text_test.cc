#include "training/tokenizer_training/training_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kNoBound = int64_t{1} << 40;

class TrainingTextTest : public testing::Test {
 protected:
  std::vector<std::string> SentencesOf(std::string_view text, int64_t max_bytes = kNoBound) {
    const std::string path = folder_ / "text.txt";
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    auto sentences = ReadTrainingText(std::vector{path}, max_bytes);
    EXPECT_TRUE(sentences.ok()) << MessageOf(sentences.status());
    return *sentences;
  }

  ScratchFolder folder_;
};

TEST_F(TrainingTextTest, SentencesAreLinesWithTheirSpaces) {
  EXPECT_THAT(SentencesOf("one two\n  indented \n\n\nlast"),
              ElementsAre("one two", "  indented ", "last"));
  EXPECT_THAT(SentencesOf(""), IsEmpty());
  EXPECT_THAT(SentencesOf("\n\r\n\t\n"), IsEmpty());
}

TEST_F(TrainingTextTest, ControlCharactersAndIllFormedBytesEndASentence) {
  EXPECT_THAT(SentencesOf("a\r\nb\tc\x7F"
                          "d"),
              ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(SentencesOf(std::string_view("x\0y", 3)), ElementsAre("x", "y"));
  // A lone continuation byte, a cut character, an overlong form.
  EXPECT_THAT(SentencesOf("p\x80q\xE2\x82r\xC0\xAFs"), ElementsAre("p", "q", "r", "s"));
  EXPECT_THAT(SentencesOf("\u00E9t\u00E9 \U0001F600"), ElementsAre("\u00E9t\u00E9 \U0001F600"));
}

TEST_F(TrainingTextTest, LongLinesAreCutAtASpaceWhichIsLeftOut) {
  const std::string first(kMaxSentenceBytes - 10, 'a');
  const std::string second(100, 'b');
  EXPECT_THAT(SentencesOf(first + " " + second), ElementsAre(first, second));
  // The space may stand just behind the longest sentence.
  const std::string longest(kMaxSentenceBytes, 'c');
  EXPECT_THAT(SentencesOf(longest + " d"), ElementsAre(longest, "d"));
}

TEST_F(TrainingTextTest, LongWordsAreCutBetweenCharacters) {
  // Three bytes a character: 4096 is no multiple of it.
  std::string word;
  for (int i = 0; i < 3000; ++i) word += "\u6F22";
  const std::vector<std::string> sentences = SentencesOf(word);
  ASSERT_EQ(sentences.size(), 3u);
  EXPECT_EQ(sentences[0].size(), 4095u);
  EXPECT_EQ(sentences[1].size(), 4095u);
  EXPECT_EQ(std::accumulate(sentences.begin(), sentences.end(), std::string()), word);
}

TEST_F(TrainingTextTest, ALineOfSpacesEnds) {
  size_t n_bytes = 0;
  for (const std::string& sentence : SentencesOf(std::string(10000, ' '))) {
    EXPECT_LE(sentence.size(), kMaxSentenceBytes);
    n_bytes += sentence.size();
  }
  EXPECT_GE(n_bytes, 9990u);
}

TEST_F(TrainingTextTest, ALargerTextIsSampledEvenly) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {:04}\n", i);
  const std::vector<std::string> sentences = SentencesOf(text, 2500);
  // A quarter of 10,000 bytes, newlines included, in lines of 9.
  int64_t n_bytes = 0;
  int n_in_first_half = 0;
  for (const std::string& sentence : sentences) {
    n_bytes += static_cast<int64_t>(sentence.size());
    n_in_first_half += sentence < "line 0500";
  }
  EXPECT_LE(n_bytes, 2500);
  EXPECT_NEAR(static_cast<double>(sentences.size()), 250.0, 2.0);
  EXPECT_NEAR(n_in_first_half, 125, 1);
}

TEST_F(TrainingTextTest, FilesFollowOneAnother) {
  const std::vector<std::string> paths = {folder_ / "b.txt", folder_ / "a.txt"};
  ASSERT_TRUE(WriteFileAtomically(paths[0], "first").ok());
  ASSERT_TRUE(WriteFileAtomically(paths[1], "second\n").ok());
  EXPECT_THAT(*ReadTrainingText(paths, kNoBound), ElementsAre("first", "second"));
}

TEST_F(TrainingTextTest, AMissingFileIsNamed) {
  const std::vector<std::string> paths = {folder_ / "absent.txt"};
  const Status status = ReadTrainingText(paths, kNoBound).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("absent.txt"));
  EXPECT_FALSE(ReadTrainingText(std::vector{folder_.path()}, kNoBound).ok());
}

}  // namespace
}  // namespace kvlathe
