// What holds for every task, and that each answer follows from its prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/solvers.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {
namespace {

TaskExample Make(const Task& task, const TaskOptions& options, uint64_t index) {
  StatusOr<TaskExample> example = task.Generate(options, index, CountTokens);
  EXPECT_TRUE(example.ok()) << example.status();
  return *std::move(example);
}

class EveryTask : public testing::TestWithParam<const Task*> {
 protected:
  const Task& task() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, testing::ValuesIn(BuiltInTasks()),
                         [](const auto& test) { return std::string(test.param->name()); });

TEST_P(EveryTask, SameArgumentsGiveTheSameExample) {
  const TaskExample a = Make(task(), {.seed = 5}, 7), b = Make(task(), {.seed = 5}, 7);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.references, b.references);
  EXPECT_NE(a.prompt, Make(task(), {.seed = 5}, 8).prompt);
  EXPECT_NE(a.prompt, Make(task(), {.seed = 6}, 7).prompt);
  EXPECT_NE(a.prompt, Make(task(), {.split = TaskSplit::kTrain, .seed = 5}, 7).prompt);
}

TEST_P(EveryTask, AnswersFollowFromThePrompt) {
  for (const int length : {task().min_length(), task().default_length(), 2000}) {
    for (uint64_t index = 0; index < 200; ++index) {
      const TaskExample example = Make(task(), {.length = length}, index);
      ASSERT_EQ(Solve(task().name(), example.prompt).answer, example.references[0])
          << example.prompt;
    }
  }
}

TEST_P(EveryTask, TrainAndTestShareNoContent) {
  std::set<std::string> train;
  for (uint64_t index = 0; index < 3000; ++index) {
    const TaskOptions options{.split = TaskSplit::kTrain, .length = task().min_length()};
    for (std::string& content :
         Solve(task().name(), Make(task(), options, index).prompt).contents) {
      ASSERT_TRUE(BelongsTo(TaskSplit::kTrain, content)) << content;
      train.insert(std::move(content));
    }
  }
  for (uint64_t index = 0; index < 1000; ++index) {
    const TaskOptions options{.length = task().min_length()};
    for (const std::string& content :
         Solve(task().name(), Make(task(), options, index).prompt).contents) {
      ASSERT_TRUE(BelongsTo(TaskSplit::kTest, content)) << content;
      ASSERT_FALSE(train.contains(content)) << content;
    }
  }
  EXPECT_GT(train.size(), 2800u);
}

// The longest unit of any task: a worked example of sort or arithmetic, a function, a sentence.
constexpr int kLongestUnit = 85;

TEST_P(EveryTask, FillsTheLengthFromBelow) {
  const int shortest = task().min_length();
  for (const int length : {shortest, shortest + 37, 600, 1200, 2000, 5000}) {
    for (uint64_t index = 0; index < 50; ++index) {
      const TaskExample example = Make(task(), {.length = length}, index);
      const int tokens = CountTokens(example.prompt + example.references[0]);
      ASSERT_LE(tokens, length) << "asked " << length << "\n" << example.prompt;
      ASSERT_GE(tokens, length - kLongestUnit) << "asked " << length << "\n" << example.prompt;
    }
  }
}

TEST_P(EveryTask, LengthZeroIsTheDefault) {
  EXPECT_EQ(Make(task(), {}, 3).prompt,
            Make(task(), {.length = task().default_length()}, 3).prompt);
}

TEST_P(EveryTask, RefusesLengthsBelowItsShortest) {
  for (const int length : {-1, 1, task().min_length() - 1}) {
    const auto example = task().Generate({.length = length}, 0, CountTokens);
    EXPECT_EQ(example.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(example.status()).find(task().name()), std::string::npos);
  }
}

TEST_P(EveryTask, ExamplesKeepTheirForm) {
  for (const TaskSplit split : {TaskSplit::kTrain, TaskSplit::kTest}) {
    for (uint64_t index = 0; index < 300; ++index) {
      const TaskExample example = Make(task(), {.split = split}, index);
      EXPECT_FALSE(example.stop.empty());
      ASSERT_EQ(example.references.size(), 1u);
      const std::string& reference = example.references[0];
      EXPECT_EQ((reference + example.stop).find(example.stop), reference.size()) << reference;
      EXPECT_FALSE(std::isspace(static_cast<unsigned char>(example.prompt.front())));
      EXPECT_FALSE(std::isspace(static_cast<unsigned char>(example.prompt.back())));
      EXPECT_TRUE(std::isspace(static_cast<unsigned char>(reference.front())));
      EXPECT_FALSE(std::isspace(static_cast<unsigned char>(reference.back())));
      for (const unsigned char c : example.prompt + reference) ASSERT_LT(c, 128);
      EXPECT_EQ(example.choices.empty(), task().metric() != TaskMetric::kChoice);
      if (!example.choices.empty()) {
        EXPECT_EQ(std::count(example.choices.begin(), example.choices.end(), reference), 1);
      }
    }
  }
}

TEST_P(EveryTask, SurvivesCountersThatMakeNoSense) {
  for (const int constant : {-5, 0, 1000000}) {
    const auto example = task().Generate({}, 0, [&](std::string_view) { return constant; });
    ASSERT_TRUE(example.ok());
    EXPECT_EQ(Solve(task().name(), example->prompt).answer, example->references[0]);
  }
}

TEST(BuiltInTasks, AreFoundByName) {
  std::set<std::string_view> names;
  for (const Task* task : BuiltInTasks()) {
    names.insert(task->name());
    EXPECT_EQ(*FindTask(task->name()), task);
    EXPECT_EQ(task->description().find('\n'), std::string_view::npos);
    EXPECT_LE(task->min_length(), task->default_length());
  }
  EXPECT_EQ(names.size(), 10u);
  const auto missing = FindTask("pass key");
  EXPECT_EQ(missing.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(missing.status()).find("passkey, recall"), std::string::npos);
}

TEST(Passkey, LiesAtEveryDepth) {
  const Task& task = **FindTask("passkey");
  int by_quarter[4] = {};
  for (uint64_t index = 0; index < 400; ++index) {
    const std::string prompt = Make(task, {}, index).prompt;
    ++by_quarter[4 * prompt.find("Remember it") / prompt.size()];
  }
  for (const int count : by_quarter) EXPECT_NEAR(count, 100, 40);
}

TEST(Recall, HasSixteenPairsAndUpToFourEarlierQuestions) {
  const Task& task = **FindTask("recall");
  std::set<size_t> asked;
  for (uint64_t index = 0; index < 100; ++index) {
    const std::string prompt = Make(task, {}, index).prompt;
    const size_t n_asked = Solve("recall", prompt).contents.size();
    asked.insert(n_asked);
    EXPECT_GE(std::count(prompt.begin(), prompt.end(), '\n') + 1u, 16 + 1 + n_asked);
  }
  EXPECT_EQ(asked, (std::set<size_t>{1, 2, 3, 4, 5}));
}

TEST(Rules, AskForFifteenToTwentyFiveLines) {
  const Task& task = **FindTask("rules");
  std::set<int> lines;
  for (uint64_t index = 0; index < 300; ++index) {
    const std::string answer = Make(task, {}, index).references[0];
    lines.insert(static_cast<int>(std::count(answer.begin(), answer.end(), '\n')) + 1);
  }
  EXPECT_EQ(*lines.begin(), 15);
  EXPECT_EQ(*lines.rbegin(), 25);
}

}  // namespace
}  // namespace kvlathe
