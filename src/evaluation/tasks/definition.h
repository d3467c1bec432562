// A definition says what one built-in task consists of, and all generators share the rest: seeds,
// the split into train and test, and the search for the number of records or sentences that fills a
// length.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "base/random.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {

class Haystack;
class TaskParameters;

// Whether content that decides an answer belongs to the split: an eighth of all content is test's.
bool BelongsTo(TaskSplit split, std::string_view content);

// Draws until content(drawn) belongs to the split.
template <typename Draw, typename Content>
auto DrawFor(TaskSplit split, Draw draw, Content content) {
  auto drawn = draw();
  while (!BelongsTo(split, content(drawn))) drawn = draw();
  return drawn;
}

// One example that is asked for. Streams of random numbers are read apart, so that a longer example
// extends a shorter one of the same key instead of replacing it.
struct TaskRequest {
  TaskSplit split;
  int length;  // tokens, at least the task's min_length
  uint64_t key;
  const TokenCounter& count_tokens;

  Random Stream(uint64_t stream) const { return Random(key, stream); }
};

// How many units (sentences, records, worked examples) an example may have; `tokens` is a first
// guess of what one takes.
struct UnitRange {
  int min = 0;
  int max = std::numeric_limits<int>::max() / 2;
  int tokens = 12;
};

// build(n) with the largest n of the range whose prompt and canonical answer fit into the length,
// to within about one unit. Counts tokens two to four times as a rule. A tokenizer so wordy that
// even build(range.min) does not fit gets that one.
TaskExample FitLength(const TaskRequest& request, const UnitRange& range,
                      const std::function<TaskExample(int)>& build);

// Appends the example's answer and `after` to its prompt, as an earlier answer; after starts with
// the example's stop.
void AppendAnswer(std::string_view after, TaskExample& example);

struct TaskDefinition {
  std::string_view name;
  std::string_view description;
  TaskMetric metric;
  double chance;
  int default_length;
  int min_length;
  std::function<TaskExample(const TaskRequest& request)> generate;
};

// A task of this name; `parameters` is what it can be given.
std::shared_ptr<const Task> ToTask(TaskDefinition definition, const std::string& name,
                                   const std::string& parameters);

TaskDefinition PasskeyTask();
TaskDefinition RecallTask();
TaskDefinition MultihopTask();
TaskDefinition ArithmeticTask();
TaskDefinition SortTask();
TaskDefinition CopyTask();
TaskDefinition ClassifyTask();
TaskDefinition SummaryTask();
TaskDefinition CodeTask();
TaskDefinition RulesTask();

// Tasks with parameters, which are read from `parameters`; its errors are the caller's to look at.
// `haystack` is what they hide things in.
TaskDefinition NeedleTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);
TaskDefinition VariablesTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);
TaskDefinition FrequentTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);
TaskDefinition JsonTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);
TaskDefinition ToolsTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);

}  // namespace kvlathe
