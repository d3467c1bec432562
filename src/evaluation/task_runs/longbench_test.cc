#include "evaluation/task_runs/longbench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "evaluation/metrics.h"
#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

class LongBenchTest : public ::testing::Test {
 protected:
  std::string Write(std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / "set.jsonl", text).ok());
    return folder_ / "set.jsonl";
  }
  ScratchFolder folder_;
};

TEST_F(LongBenchTest, ReadsSummaries) {
  const auto file = ReadLongBench(Write(
      R"({"input": "", "context": "A {input} b.", "answers": ["It is."], "length": 2, "dataset": "multi_news", "language": "en", "all_classes": null, "_id": "1"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "longbench/multi_news");
  EXPECT_EQ(file->metric, TaskMetric::kRougeLUnion);
  EXPECT_TRUE(file->cuts_middle);
  EXPECT_FALSE(file->takes_shots);
  const TaskExample& example = file->examples[0];
  EXPECT_EQ(example.prompt,
            "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
            "A {input} b.\n\nNow, write a one-page summary of all the news.\n\nSummary:");
  EXPECT_EQ(example.references, std::vector<std::string>{" It is."});
  EXPECT_EQ(example.room_tokens, 512);
  EXPECT_EQ(example.most_tokens, 512);
}

TEST_F(LongBenchTest, ReadsQuestionsWithSeveralAnswers) {
  const auto file = ReadLongBench(Write(
      R"({"input": "Who?", "context": "{context}", "answers": ["The fox", "fox"], "dataset": "hotpotqa"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kF1);
  const TaskExample& example = file->examples[0];
  EXPECT_NE(example.prompt.find("passages.\n{context}\n\nAnswer"), std::string::npos);
  EXPECT_TRUE(example.prompt.ends_with("\n\nQuestion: Who?\nAnswer:"));
  EXPECT_EQ(example.references.size(), 2u);
  EXPECT_EQ(example.most_tokens, 32);
  EXPECT_EQ(Score(file->metric, " the Fox.", example.references), 1);
}

TEST_F(LongBenchTest, RefusesWhatIsNoSetAndSaysWhere) {
  const std::string good =
      R"({"input": "q", "context": "c", "answers": ["a"], "dataset": "qmsum"})";
  const std::pair<std::string, const char*> cases[] = {
      {"", "no examples"},
      {"[1]", "set.jsonl:1: not a JSON object"},
      {R"({"input": "q", "context": "c", "answers": ["a"]})", "set.jsonl:1: no \"dataset\""},
      {R"({"dataset": "lcc"})", "set.jsonl:1: LongBench's set \"lcc\" is not scored here"},
      {R"({"dataset": 3})", "dataset"},
      {good + "\n" + R"({"dataset": "musique"})", "set.jsonl:2: set musique after lines of set qm"},
      {R"({"dataset": "qmsum", "context": "", "input": "q", "answers": ["a"]})", "context"},
      {R"({"dataset": "qmsum", "context": "c", "answers": ["a"]})", "input"},
      {R"({"dataset": "qmsum", "context": "c", "input": "", "answers": ["a"]})", "input"},
      {R"({"dataset": "qmsum", "context": "c", "input": "q", "answers": []})", "answers"},
      {R"({"dataset": "qmsum", "context": "c", "input": "q", "answers": "a"})", "answers"},
      {R"({"dataset": "samsum", "context": "c", "input": "q", "answers": ["a\nb"]})", "ends an"},
  };
  for (const auto& [text, part] : cases) {
    const auto file = ReadLongBench(Write(text));
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(file.status()).find("set.jsonl"), std::string::npos) << file.status();
    EXPECT_NE(MessageOf(file.status()).find(part), std::string::npos) << file.status();
  }
}

// A word is a token, however many spaces stand before it; with a BOS.
class WordTokenizer : public Tokenizer {
 public:
  StatusOr<std::vector<int32_t>> TryTokenizeMarked(std::string_view text, bool add_bos,
                                                   std::span<const TextRange>) const override {
    std::vector<int32_t> ids;
    if (add_bos) ids.push_back(0);
    for (size_t i = 0; i < text.size();) {
      const size_t end = std::min(text.find(' ', i + 1), text.size());
      ids.push_back(IdOf(std::string(text.substr(i, end - i))));
      i = end;
    }
    return ids;
  }
  std::string TokenBytes(int32_t id, bool) const override { return id == 0 ? "" : words_[id]; }
  std::string Detokenize(std::span<const int32_t> ids, bool keep_special) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, keep_special);
    return text;
  }
  int64_t MinTokens(std::string_view) const override { return 0; }
  int vocab_size() const override { return static_cast<int>(words_.size()); }
  std::optional<int32_t> bos_id() const override { return 0; }
  std::optional<int32_t> eos_id() const override { return std::nullopt; }

 private:
  int32_t IdOf(const std::string& word) const {
    for (size_t i = 1; i < words_.size(); ++i) {
      if (words_[i] == word) return static_cast<int32_t>(i);
    }
    words_.push_back(word);
    return static_cast<int32_t>(words_.size() - 1);
  }
  mutable std::vector<std::string> words_ = {"<bos>"};
};

TEST(WithoutMiddle, KeepsAsMuchOfBothEnds) {
  const WordTokenizer tokenizer;
  const std::string text = "a b c d e f g";
  EXPECT_EQ(WithoutMiddle(text, 8, tokenizer), text);
  // BOS is one of the tokens of the first half.
  EXPECT_EQ(WithoutMiddle(text, 7, tokenizer), "a b e f g");
  EXPECT_EQ(WithoutMiddle(text, 6, tokenizer), "a b e f g");
  EXPECT_EQ(WithoutMiddle(text, 2, tokenizer), " g");
  EXPECT_EQ(WithoutMiddle("", 2, tokenizer), "");
}

// longbench/multi_news.jsonl.
TEST(PublishedLongBenchTest, IsReadWhole) {
  const char* folder = std::getenv("KVLATHE_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "KVLATHE_TEST_DATA names no folder with data sets";
  const auto file = ReadLongBench(std::string(folder) + "/longbench/multi_news.jsonl");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->examples.size(), 200u);
  for (const TaskExample& example : file->examples) {
    EXPECT_EQ(Score(file->metric, example.references[0], example.references), 1);
  }
}

}  // namespace
}  // namespace kvlathe
