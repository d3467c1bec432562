#include "evaluation/task_runs/task_files.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST_F(TaskFilesTest, AllReferencesAreToBeFoundInOneAnswer) {
  const auto file =
      ReadTaskFile(Write("f.jsonl", R"({"prompt":"a","references":[" b","c"],"metric":"found"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kFound);
  EXPECT_EQ(CanonicalAnswer(file->examples[0]), " b, c");
}

TEST_F(TaskFilesTest, ChoicesMakeAChoiceTask) {
  const auto file =
      ReadTaskFile(Write("c.jsonl", R"({"prompt":"a","reference":" x","choices":[" y"," x"]})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kChoice);
  EXPECT_EQ(file->examples[0].choices, (std::vector<std::string>{" y", " x"}));
  EXPECT_TRUE(file->takes_shots);
  EXPECT_FALSE(file->norm_leads);
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
      {R"({"prompt":"a","reference":"f","metric":"option_letter"})", "no letter A to E"},
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
  const auto bzipped = ReadTaskFile(Write("h.jsonl.bz2", "BZh91AY"));
  EXPECT_NE(MessageOf(bzipped.status()).find("bunzip2"), std::string::npos);
}

TEST_F(TaskFilesTest, ReadsHumanEval) {
  const auto file = ReadHumanEval(Write(
      "h.jsonl",
      R"({"task_id":"x/0","prompt":"def f():\n","canonical_solution":"    return 1\n","test":"","entry_point":"f"})"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metric, TaskMetric::kEditSimilarity);
  EXPECT_EQ(file->examples[0].prompt, "def f():\n");
  EXPECT_EQ(file->examples[0].references[0], "    return 1\n");
  EXPECT_EQ(file->examples[0].room_tokens, 512);
  EXPECT_EQ(file->examples[0].stop, "\n\n\n");
  EXPECT_NE(std::ranges::find(file->examples[0].more_stops, "\ndef "),
            file->examples[0].more_stops.end());
  EXPECT_FALSE(ReadHumanEval(Write("h.jsonl", R"({"prompt":"def f():\n"})")).ok());
  // A solution that its own stop text would cut can be equalled by no output.
  const auto cut = ReadHumanEval(Write(
      "h.jsonl",
      R"({"prompt":"def f():\n","canonical_solution":"    return g()\ndef g():\n    return 1\n"})"));
  EXPECT_EQ(cut.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(cut.status()).find("\"def \""), std::string::npos) << cut.status();
}

TEST_F(TaskFilesTest, ChanceIsTheMeanOverTheExamplesThatRun) {
  TaskFile file;
  file.examples.resize(3);
  EXPECT_FALSE(ChanceOf(file, 3).has_value());
  file.n_options = {4, 2, 5};
  EXPECT_DOUBLE_EQ(ChanceOf(file, 2).value_or(-1), (0.25 + 0.5) / 2);
  file.n_options.clear();
  file.metric = TaskMetric::kChoice;
  file.examples[0].choices.resize(3);
  file.examples[1].choices.resize(5);
  EXPECT_DOUBLE_EQ(ChanceOf(file, 2).value_or(-1), (1.0 / 3 + 0.2) / 2);
}

}  // namespace
}  // namespace kvlathe
