// This part of `kvlathe eval` runs tasks.
#pragma once

#include <string>

#include "base/status.h"
#include "kvlathe/options.h"
#include "runtime/measuring/task_choice.h"

namespace kvlathe {

struct TaskEvalOptions {
  TaskChoiceOptions choice;
  std::string predictions;     // --predictions
  std::string baseline;        // --baseline
  std::string draft = "none";  // --draft, checked when parsed
};

// Adds --task and what goes with it.
void AddTaskOptions(CLI::App* verb, TaskEvalOptions* options);
Status EvalTasks(const ModelOptions& model, const TaskEvalOptions& options);

}  // namespace kvlathe
