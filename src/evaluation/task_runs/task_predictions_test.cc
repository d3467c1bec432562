#include "evaluation/task_runs/task_predictions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

PreparedExample ExampleOf(int32_t token) {
  PreparedExample example;
  example.text = {.prompt = "a prompt", .references = {" b"}, .choices = {" a", " b"}};
  example.prompt = {1, token};
  example.questions = {{.n_prompt = 2, .choices = {{5}, {6, 7}}, .n_context = {0, 0}}};
  return example;
}

PreparedTask TaskOf(int n) {
  PreparedTask task{.metric = TaskMetric::kChoice};
  for (int i = 0; i < n; ++i) task.examples.push_back(ExampleOf(i));
  return task;
}

TaskPrediction Picked(int picked, int picked_norm) {
  return {.output = picked == 0 ? " a" : " b",
          .score = static_cast<double>(picked),
          .log_likelihoods = {-1.5, -2},
          .picked = picked,
          .picked_norm = picked_norm,
          .taken = picked};
}

class TaskPredictionsTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = folder_ / "baseline.jsonl";
    std::ofstream(path) << text;
    return path;
  }
  static std::string Lines(const PreparedTask& task, int n, const PredictionSource& source) {
    std::string text;
    for (int i = 0; i < n; ++i) {
      text += PredictionLine(source, i, task.examples[i], Picked(i % 2, 1));
    }
    return text;
  }
  void ExpectRefused(const std::string& text, const PreparedTask& task, const std::string& where,
                     const std::string& what) {
    const Status status = ReadBaseline(Write(text), "task", task).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(status).find("baseline.jsonl" + where), std::string::npos) << status;
    EXPECT_NE(MessageOf(status).find(what), std::string::npos) << status;
  }

  ScratchFolder folder_;
  const PredictionSource none_ = {"none", "none", "task"};
};

TEST_F(TaskPredictionsTest, ALineHasWhatTheContractNames) {
  const auto line = nlohmann::json::parse(PredictionLine(none_, 3, ExampleOf(0), Picked(1, -1)));
  EXPECT_EQ(line["index"], 3);
  EXPECT_EQ(line["output"], " b");
  EXPECT_EQ(line["reference"], " b");
  EXPECT_EQ(line["loglikelihoods"], (std::vector<double>{-1.5, -2}));
  EXPECT_EQ(line["picked"], 1);
  EXPECT_TRUE(line["picked_norm"].is_null());
  const auto generated = nlohmann::json::parse(
      PredictionLine(none_, 0, ExampleOf(0), {.output = "\xff!", .score = 0.25}));
  EXPECT_FALSE(generated.contains("loglikelihoods"));
  EXPECT_FALSE(generated.contains("picked"));
  EXPECT_EQ(generated["score"], 0.25);
}

TEST_F(TaskPredictionsTest, ABaselineIsReadInAnyOrderAmongOthers) {
  PreparedTask task = TaskOf(3);
  const std::string lines = Lines(task, 3, none_);
  const size_t second = lines.find('\n') + 1;
  const std::string path =
      Write(Lines(task, 3, {"int8", "int8(sink=4)", "task"}) + lines.substr(second) + "\n" +
            lines.substr(0, second) + Lines(task, 3, {"none", "none", "another"}));
  for (const bool norm_leads : {false, true}) {
    task.norm_leads = norm_leads;
    const auto read = ReadBaseline(path, "task", task);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ((*read)[i].score, i % 2);
      EXPECT_EQ((*read)[i].output, i % 2 == 0 ? " a" : " b");
      EXPECT_EQ((*read)[i].taken, norm_leads ? 1 : i % 2);
    }
  }
}

TEST_F(TaskPredictionsTest, ABaselineThatDoesNotFitIsRefused) {
  const PreparedTask task = TaskOf(3);
  const std::string lines = Lines(task, 3, none_);
  ExpectRefused(lines, TaskOf(2), ":3: ", "--task-count");
  ExpectRefused(lines, TaskOf(4), ": ", "3 predictions of task task, but the task runs 4");
  ExpectRefused(Lines(task, 3, {"none", "none", "another"}), task, ": ", "no predictions of task");
  ExpectRefused(Lines(task, 3, {"int8", "int8", "task"}), task, ": ", "--kv none");
  ExpectRefused("", task, ": ", "no predictions of task");
  ExpectRefused(lines + lines, task, ":4: ", "once more");
  ExpectRefused(lines + "{\"task\": \"task\"\n", task, ":4: ", "JSON");
  ExpectRefused("{\"task\": \"task\", \"kv_resolved\": \"none\"}\n", task, ":1: ", "index");
  PreparedTask other = TaskOf(3);
  other.examples[1].prompt.back() = 77;
  ExpectRefused(lines, other, ":2: ", "same model");
  other = TaskOf(3);
  other.examples[2].questions[0].choices = {{5, 6}, {7}};  // the same tokens, cut elsewhere
  ExpectRefused(lines, other, ":3: ", "same model");
  auto line = nlohmann::json::parse(lines.substr(0, lines.find('\n')));
  line["picked"] = 2;
  ExpectRefused(line.dump() + "\n", TaskOf(1), ":1: ", "picked");
  line["picked"] = 1;
  line["score"] = "1";
  ExpectRefused(line.dump() + "\n", TaskOf(1), ":1: ", "score");
  EXPECT_EQ(ReadBaseline(folder_ / "none.jsonl", "task", task).status().code(),
            StatusCode::kNotFound);
}

TEST_F(TaskPredictionsTest, AChangeOfChoicesIsPairedExampleByExample) {
  // Right and wrong: 1 0 1 0 against 1 1 0 0; the last picks another wrong choice.
  std::vector<TaskPrediction> baseline(4), changed(4);
  const int before[] = {2, 0, 2, 1}, after[] = {2, 2, 1, 0};
  for (int i = 0; i < 4; ++i) {
    baseline[i] = {.output = "same text", .score = double(before[i] == 2), .taken = before[i]};
    changed[i] = {.output = "same text", .score = double(after[i] == 2), .taken = after[i]};
  }
  const TaskChange change = ChangeFrom(baseline, changed);
  EXPECT_EQ(change.flips, 0.75);
  EXPECT_EQ(change.score_change.mean, 0);
  // Differences 0, 1, -1, 0: sample variance 2/3, over 4 examples.
  EXPECT_NEAR(change.score_change.standard_error, std::sqrt(2.0 / 3 / 4), 1e-15);
  const TaskChange none = ChangeFrom(baseline, baseline);
  EXPECT_EQ(none.flips, 0);
  EXPECT_EQ(none.score_change.standard_error, 0);
}

TEST_F(TaskPredictionsTest, AChangeOfTextsIsAnotherText) {
  const std::vector<TaskPrediction> baseline = {
      {.output = "one", .score = 0.5}, {.output = "two", .score = 1}, {.output = "\xEF\xBF\xBD"}};
  // Another text of the same score is a flip; bytes that a file cannot hold are none.
  const std::vector<TaskPrediction> changed = {
      {.output = "uno", .score = 0.5}, {.output = "two", .score = 1}, {.output = "\xff"}};
  const TaskChange change = ChangeFrom(baseline, changed);
  EXPECT_DOUBLE_EQ(change.flips, 1.0 / 3);
  EXPECT_EQ(change.score_change.mean, 0);
}

TEST_F(TaskPredictionsTest, TextsPartAtTheFirstTokenThatDiffers) {
  using Ids = std::vector<int32_t>;
  const std::vector<TaskPrediction> baseline = {
      {.tokens = Ids{1, 2, 3}}, {.tokens = Ids{1, 2, 3}}, {.tokens = Ids{4}}, {.tokens = Ids{}}};
  const std::vector<TaskPrediction> changed = {{.tokens = Ids{1, 2, 9}},
                                               {.tokens = Ids{1, 2, 3, 4}},
                                               {.tokens = Ids{4}},
                                               {.tokens = Ids{7}}};
  const TaskChange change = ChangeFrom(baseline, changed);
  ASSERT_TRUE(change.parting.has_value());
  EXPECT_DOUBLE_EQ(change.parting->mean, (2 + 3 + 1 + 0) / 4.0);
  EXPECT_DOUBLE_EQ(change.parting->median, 1.5);
  EXPECT_DOUBLE_EQ(change.parting->never, 0.25);
  EXPECT_DOUBLE_EQ(ChangeFrom(baseline, baseline).parting->never, 1);
  // Choices have no tokens, and files of earlier versions neither.
  EXPECT_FALSE(ChangeFrom(std::vector<TaskPrediction>(4), changed).parting.has_value());
}

TEST_F(TaskPredictionsTest, TokensAreReadAgain) {
  PreparedTask task{.metric = TaskMetric::kF1, .examples = {ExampleOf(0)}};
  const auto line_with = [&](const nlohmann::json& tokens) {
    auto line = nlohmann::json::parse(PredictionLine(none_, 0, task.examples[0], {.output = "x"}));
    EXPECT_FALSE(line.contains("tokens"));
    line["tokens"] = tokens;
    return line.dump() + "\n";
  };
  const TaskPrediction prediction = {.output = "x",
                                     .tokens = std::vector<int32_t>{5, 0, 2147483647}};
  const auto read =
      ReadBaseline(Write(PredictionLine(none_, 0, task.examples[0], prediction)), "task", task);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)[0].tokens, prediction.tokens);
  EXPECT_EQ(
      ReadBaseline(Write(line_with(nlohmann::json::array())), "task", task)->front().tokens->size(),
      0u);
  for (const char* tokens : {"3", "null", "[-1]", "[1.5]", "[2147483648]", R"(["1"])", "{}"}) {
    ExpectRefused(line_with(nlohmann::json::parse(tokens)), task, ":1: ", "tokens");
  }
}

TEST(MeanOfScores, HasTheErrorOfTheSample) {
  const std::vector<double> values = {1, 0, 0, 1, 1};
  const MeanScore mean = MeanOf(values);
  EXPECT_DOUBLE_EQ(mean.mean, 0.6);
  EXPECT_NEAR(mean.standard_error, std::sqrt(0.6 * 0.4 / 4), 1e-15);
  EXPECT_EQ(MeanOf(std::vector<double>{0.3}).standard_error, 0);
}

}  // namespace
}  // namespace kvlathe
