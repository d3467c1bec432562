#include "evaluation/task_files.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

class TaskFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
    return folder_ / name;
  }
  // Reads `text` as a plain task file and returns the message that refuses it.
  std::string Refusal(std::string_view text) {
    const auto file = ReadTaskFile(Write("task.jsonl", text));
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << text;
    return MessageOf(file.status());
  }
  ScratchFolder folder_;
};

TEST_F(TaskFilesTest, ReadsThePlainForm) {
  const auto file =
      ReadTaskFile(Write("names.jsonl", R"({"prompt":"a","references":[" b"," c"],"metric":"f1"})"
                                        "\n\n"
                                        R"({"prompt":"d","reference":" e","stop":"\n","id":3})"
                                        "\r\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "names");
  EXPECT_EQ(file->metric, TaskMetric::kF1);
  ASSERT_EQ(file->examples.size(), 2u);
  EXPECT_EQ(file->examples[0].prompt, "a");
  EXPECT_EQ(file->examples[0].references, (std::vector<std::string>{" b", " c"}));
  EXPECT_EQ(file->examples[0].stop, "\n\n");
  EXPECT_EQ(file->examples[1].references, std::vector<std::string>{" e"});
  EXPECT_EQ(file->examples[1].stop, "\n");
}

TEST_F(TaskFilesTest, ChoicesMakeAChoiceTask) {
  const auto file =
      ReadTaskFile(Write("c.jsonl", R"({"prompt":"a","reference":" x","choices":[" y"," x"]})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kChoice);
  EXPECT_EQ(file->examples[0].choices, (std::vector<std::string>{" y", " x"}));
}

TEST_F(TaskFilesTest, RefusalsNameFileLineAndRemedy) {
  const std::string good = R"({"prompt":"a","reference":"b"})";
  const std::string message = Refusal(good + "\n\n" + R"({"prompt":"a")");
  EXPECT_NE(message.find(folder_ / "task.jsonl:3: "), std::string::npos) << message;
  const std::pair<std::string, const char*> cases[] = {
      {"", "no examples"},
      {" \n\n", "no examples"},
      {"[1]", "not a JSON object"},
      {"\"prompt\"", "not a JSON object"},
      {good + good, "not a JSON object"},
      {good + std::string(1, '\0') + "x", "not a JSON object"},
      {"{\"prompt\":\"\xFF\",\"reference\":\"b\"}", "not a JSON object"},
      {std::string(100000, '['), "not a JSON object"},
      {R"({"reference":"b"})", "no \"prompt\""},
      {R"({"prompt":3,"reference":"b"})", "\"prompt\" is no string"},
      {R"({"prompt":"","reference":"b"})", "prompt is empty"},
      {R"({"prompt":"a"})", "no \"reference\""},
      {R"({"prompt":"a","reference":null})", "\"reference\" is no string"},
      {R"({"prompt":"a","references":[]})", "list of one or more strings"},
      {R"({"prompt":"a","references":"b"})", "list of one or more strings"},
      {R"({"prompt":"a","references":["b",1]})", "list of one or more strings"},
      {R"({"prompt":"a","references":{"b":"c"}})", "list of one or more strings"},
      {R"({"prompt":"a","reference":"b","metric":"bleu"})", "edit_similarity"},
      {R"({"prompt":"a","reference":"b","metric":1})", "\"metric\" is no string"},
      {good + "\n" + R"({"prompt":"a","reference":"b","metric":"f1"})", "files of their own"},
      {R"({"prompt":"a","reference":"b","stop":""})", "\"stop\" is empty"},
      {R"({"prompt":"a","reference":"b\n\nc"})", "contains the stop text \"\\n\\n\""},
      {R"({"prompt":"a","reference":"b","metric":"final_answer"})", "no number"},
      {R"({"prompt":"a","reference":"b","metric":"choice"})", "without \"choices\""},
      {R"({"prompt":"a","reference":"b","choices":["b"]})", "two or more"},
      {R"({"prompt":"a","reference":"b","choices":["b",""]})", "empty choice"},
      {R"({"prompt":"a","reference":"b","choices":[" b"," c"]})", "not among the choices"},
      {R"({"prompt":"a","reference":"b","metric":"f1","choices":["b","c"]})", "is f1"},
  };
  for (const auto& [text, needle] : cases) {
    const std::string refusal = Refusal(text);
    EXPECT_NE(refusal.find(needle), std::string::npos) << text.substr(0, 100) << ": " << refusal;
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
  }
}

TEST_F(TaskFilesTest, FilesThatAreNot) {
  EXPECT_EQ(ReadTaskFile(folder_ / "none.jsonl").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(ReadTaskFile(folder_.path()).ok());
  const auto packed = ReadHumanEval(Write("h.jsonl.gz", "\x1F\x8B\x08"));
  EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(packed.status()).find("gunzip"), std::string::npos);
}

constexpr std::string_view kTwoProblems =
    R"({"question":"What is 3 times 4?","answer":"3 * 4 = <<3*4=12>>12.\n#### 12"})"
    "\n"
    R"({"question":"And 1,000 more?","answer":"12 + 1000 = $<<12+1000=1012>>1012.\n\nSo.\n#### 1,012"})";

TEST_F(TaskFilesTest, ReadsGsm8kWithoutShots) {
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "gsm8k");
  EXPECT_EQ(file->metric, TaskMetric::kFinalAnswer);
  ASSERT_EQ(file->examples.size(), 2u);
  EXPECT_EQ(file->examples[0].prompt, "Q: What is 3 times 4?\nA:");
  EXPECT_EQ(file->examples[0].references[0], " 3 * 4 = 12.\n#### 12");
  EXPECT_EQ(file->examples[1].references[0], " 12 + 1000 = $1012.\nSo.\n#### 1,012");
}

TEST_F(TaskFilesTest, ShotsOfATrainSetAreItsFirstEight) {
  std::string train;
  for (int i = 0; i < 10; ++i) {
    train += fmt::format(R"({{"question":"q{}?","answer":"a.\n#### {}"}})", i, i) + "\n";
  }
  const auto shots = ReadFewShots(Write("train.jsonl", train));
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_TRUE(shots->text.starts_with("Q: q0?\nA: a.\n#### 0\n\nQ: q1?\nA: "));
  EXPECT_TRUE(shots->text.ends_with("Q: q7?\nA: a.\n#### 7\n\n"));
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), *shots);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->examples[0].prompt, shots->text + "Q: What is 3 times 4?\nA:");
}

TEST_F(TaskFilesTest, ShotsOfAPromptFileGiveTheForm) {
  const auto labelled =
      ReadFewShots(Write("a.txt", "Q: one?\nAnswer: 1.\n\n\nQ: two?\nAnswer: 2.\n"));
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  EXPECT_EQ(labelled->text, "Q: one?\nAnswer: 1.\n\nQ: two?\nAnswer: 2.\n\n");
  EXPECT_EQ(labelled->question, "Q:");
  EXPECT_EQ(labelled->cue, "Answer:");

  const auto cued = ReadFewShots(Write(
      "b.txt", "Question: one?\nLet us think\nIt is 1.\n\nQuestion: two?\nLet us think\n2.\n"));
  ASSERT_TRUE(cued.ok()) << cued.status();
  EXPECT_EQ(cued->question, "Question:");
  EXPECT_EQ(cued->cue, "Let us think\n");
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), *cued);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(
      file->examples[0].prompt.ends_with("2.\n\nQuestion: What is 3 times 4?\nLet us think\n"));
  EXPECT_EQ(file->examples[0].references[0], "3 * 4 = 12.\n#### 12");

  for (const char* text :
       {"", "\n\n\n", "no label\nhere", "Q: only a question", "Q: a\nA: 1\n\nR: b\nA: 2",
        "Q: a\nA: 1\n\nQ: b\nB: 2", "Q: a\nsome answer"}) {
    const auto shots = ReadFewShots(Write("c.txt", text));
    EXPECT_EQ(shots.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(shots.status()).find("c.txt"), std::string::npos);
  }
}

TEST_F(TaskFilesTest, Gsm8kRefusesWhatHasNoFinalAnswer) {
  for (const char* line :
       {R"({"question":"q","answer":"12"})", R"({"question":"q","answer":"12 #### none"})",
        R"({"question":"","answer":"#### 1"})", R"({"question":"q"})", R"({"answer":"#### 1"})"}) {
    const auto file = ReadGsm8k(Write("g.jsonl", line), {});
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << line;
    EXPECT_NE(MessageOf(file.status()).find("g.jsonl:1: "), std::string::npos);
    EXPECT_FALSE(ReadFewShots(folder_ / "g.jsonl").ok());
  }
}

TEST_F(TaskFilesTest, ReadsHumanEval) {
  const auto file = ReadHumanEval(Write(
      "h.jsonl",
      R"({"task_id":"x/0","prompt":"def f():\n","canonical_solution":"    return 1\n","test":"","entry_point":"f"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kEditSimilarity);
  EXPECT_EQ(file->examples[0].prompt, "def f():\n");
  EXPECT_EQ(file->examples[0].references[0], "    return 1\n");
  EXPECT_FALSE(ReadHumanEval(Write("h.jsonl", R"({"prompt":"def f():\n"})")).ok());
}

// The sets as they are published: KVLATHE_TEST_DATA names a folder with gsm8k/test.jsonl,
// gsm8k/train.jsonl and cot_prompts/gsm8k_prompt_original.txt.
TEST(PublishedSetsTest, AreReadWhole) {
  const char* folder = std::getenv("KVLATHE_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "KVLATHE_TEST_DATA names no folder with data sets";
  const std::string data = folder;
  for (const std::string& shots_path :
       {data + "/gsm8k/train.jsonl", data + "/cot_prompts/gsm8k_prompt_original.txt"}) {
    const auto shots = ReadFewShots(shots_path);
    ASSERT_TRUE(shots.ok()) << shots.status();
    const auto file = ReadGsm8k(data + "/gsm8k/test.jsonl", *shots);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->examples.size(), 1319u);
    for (const TaskExample& example : file->examples) {
      EXPECT_EQ(example.references[0].find(example.stop), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvlathe
