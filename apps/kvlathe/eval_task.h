// The part of `kvlathe eval` that runs tasks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "options.h"

namespace kvlathe {

struct TaskEvalOptions {
  std::vector<std::string> tasks;  // --task, repeats
  int length = 0;                  // --task-length, 0: each task's own
  int count = 100;                 // --task-count
  uint64_t seed = 1;
  std::string shots;        // --shots
  std::string predictions;  // --predictions
};

// Adds --task and what goes with it.
void AddTaskOptions(CLI::App* verb, TaskEvalOptions* options);
Status EvalTasks(const ModelOptions& model, const TaskEvalOptions& options);

}  // namespace kvlathe
