#include "evaluation/task_runs/big_bench_hard.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/task_shots.h"
#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

class BigBenchHardTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
    return folder_ / name;
  }
  ScratchFolder folder_;
};

constexpr std::string_view kCounting =
    R"x({"canary": "no", "examples": [{"input": "Two hens. How many?", "target": "2"}, )x"
    R"x({"input": "Which?\nOptions:\n(A) a hen\n(B) none", "target": "(B)"}]})x";
constexpr std::string_view kCountingPrompt =
    "canary\n-----\nCount.\n\nQ: A hen. How many?\nA: Let's think step by step.\n- hen (1)\nSo the "
    "answer is 1.\n\nQ: None?\nA: Let's think step by step.\nThe answer is 0.";

TEST_F(BigBenchHardTest, ReadsASetWithoutShots) {
  const auto file = ReadBigBenchHard(Write("counting.json", kCounting), BigBenchHardForm());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "bbh/counting");
  EXPECT_EQ(file->metric, TaskMetric::kStatedAnswer);
  ASSERT_EQ(file->examples.size(), 2u);
  const TaskExample& example = file->examples[0];
  EXPECT_EQ(example.prompt, "Q: Two hens. How many?\nA: Let's think step by step.\n");
  EXPECT_EQ(example.references, std::vector<std::string>{"So the answer is 2."});
  EXPECT_EQ(example.room_tokens, 512);
  EXPECT_EQ(example.stop, "\nQ:");
  EXPECT_EQ(file->examples[1].references[0], "So the answer is (B).");
  EXPECT_TRUE(file->n_options.empty());  // one question has none
}

TEST_F(BigBenchHardTest, ChanceFollowsFromTheOptions) {
  const std::string set =
      R"x({"examples": [{"input": "?\nOptions:\n(A) a\n(B) b", "target": "(B)"}, )x"
      R"x({"input": "?\nOptions:\n- Yes\n- No\n- Both\n- None", "target": "No"}]})x";
  const auto file = ReadBigBenchHard(Write("a.json", set), BigBenchHardForm());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->n_options, (std::vector<int>{2, 4}));
  EXPECT_DOUBLE_EQ(ChanceOf(*file, 2).value_or(-1), 0.375);
}

TEST_F(BigBenchHardTest, ShotsAreThePromptBehindItsRule) {
  const auto shots = ReadBigBenchHardShots(Write("counting.txt", kCountingPrompt));
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_EQ(shots->count, 2);
  EXPECT_TRUE(shots->text.starts_with("Count.\n\nQ: A hen."));
  EXPECT_TRUE(shots->text.ends_with("The answer is 0.\n\n"));
  const auto file = ReadBigBenchHard(Write("counting.json", kCounting), *shots);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->n_shots, 2);
  EXPECT_EQ(file->examples[0].prompt,
            shots->text + "Q: Two hens. How many?\nA: Let's think step by step.\n");
}

TEST_F(BigBenchHardTest, ShotsOfTheSameFileHaveNoChain) {
  const auto file = ReadBigBenchHard(Write("counting.json", kCounting), BigBenchHardForm());
  ASSERT_TRUE(file.ok());
  const auto with_shots = AddShots(*file, 1, {.count = 1}, nullptr);
  ASSERT_TRUE(with_shots.ok()) << with_shots.status();
  EXPECT_EQ(with_shots->examples[0].prompt,
            "Q: Which?\nOptions:\n(A) a hen\n(B) none\nA: Let's think step by step.\nSo the answer "
            "is (B).\n\nQ: Two hens. How many?\nA: Let's think step by step.\n");
}

TEST_F(BigBenchHardTest, RefusesWhatIsNoSetAndSaysWhere) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "set.json:1: "},
      {"{\n\"examples\": [\n  {\"input\": }]}", "set.json:3: is no JSON from column 13 on"},
      {"[]", "examples"},
      {R"({"examples": {}})", "examples"},
      {R"({"examples": []})", "no examples"},
      {R"({"examples": [3]})", "example 1 has no \"input\""},
      {R"({"examples": [{"input": "a", "target": "b"}, {"input": "a"}]})", "example 2 has no \"ta"},
      {R"({"examples": [{"input": " ", "target": "b"}]})", "\"input\""},
      {R"({"examples": [{"input": "a", "target": 3}]})", "\"target\""},
      {R"({"examples": [{"input": "a", "target": "b\nc"}]})", "example 1"},
      {R"({"examples": [{"input": "a", "target": "..."}]})", "no answer of one line"},
      {std::string("{}\0", 3), "NUL"},
      {"\x1F\x8B", "gunzip"},
  };
  for (const auto& [text, part] : cases) {
    const auto file = ReadBigBenchHard(Write("set.json", text), BigBenchHardForm());
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(file.status()).find("set.json"), std::string::npos) << file.status();
    EXPECT_NE(MessageOf(file.status()).find(part), std::string::npos) << file.status();
  }
  EXPECT_EQ(ReadBigBenchHard(folder_ / "none.json", BigBenchHardForm()).status().code(),
            StatusCode::kNotFound);
  // The depth of brackets is bounded by nothing but memory.
  EXPECT_FALSE(ReadBigBenchHard(Write("deep.json", std::string(1 << 20, '[')), {}).ok());
}

TEST_F(BigBenchHardTest, RefusesWhatIsNoPromptAndSaysWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no line \"-----\""},
      {"Q: a\nA: Let's think step by step.\nSo the answer is 1.", "no line \"-----\""},
      {"canary\n-----", "no solved questions"},
      {"canary\n-----\nCount.\n", "no solved questions"},
      {"canary\n-----\nCount.\n\nQ: a\n\nQ: b\n", "shots.txt:5: the question has no line \"A: "},
      {"canary\n-----\nQ: a\nA: Let's think step by step.\nSo it is 1.\n", "shots.txt:3: the q"},
  };
  for (const auto& [text, part] : cases) {
    const auto shots = ReadBigBenchHardShots(Write("shots.txt", text));
    EXPECT_EQ(shots.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(shots.status()).find("shots.txt"), std::string::npos);
    EXPECT_NE(MessageOf(shots.status()).find(part), std::string::npos) << shots.status();
  }
}

// bbh/NAME.json and bbh/NAME.txt.
TEST(PublishedBigBenchHardTest, IsReadWhole) {
  const char* folder = std::getenv("KVLATHE_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "KVLATHE_TEST_DATA names no folder with data sets";
  for (const char* name : {"boolean_expressions", "date_understanding", "multistep_arithmetic_two",
                           "object_counting", "word_sorting", "navigate"}) {
    const std::string path = std::string(folder) + "/bbh/" + name;
    const auto shots = ReadBigBenchHardShots(path + ".txt");
    ASSERT_TRUE(shots.ok()) << shots.status();
    EXPECT_EQ(shots->count, 3);
    const auto file = ReadBigBenchHard(path + ".json", *shots);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->examples.size(), 250u);
    for (const TaskExample& example : file->examples) {
      EXPECT_EQ(Score(file->metric, example.references[0], example.references), 1);
      EXPECT_EQ(example.references[0].find(example.stop), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvlathe
