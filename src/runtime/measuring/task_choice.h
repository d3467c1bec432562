// A program is asked for tasks by name or by file, and makes them ready for a model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"
#include "evaluation/task_runs/task_run.h"
#include "evaluation/tasks/task.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct TaskChoiceOptions {
  std::vector<std::string> tasks;  // --task, repeats
  int length = 0;                  // --task-length, 0: each task's own
  int count = 100;                 // --task-count
  uint64_t seed = 1;
  std::string text_path;  // --task-text
  std::string shots;      // --shots: how many, or a file with solved questions
  int shot_tokens = 0;    // --shot-tokens
};

// A task as asked for: built in, or the examples of a file.
struct ChosenTask {
  std::shared_ptr<const Task> built_in;
  TaskFile file;
  std::string asked_as;  // the argument of --task, of a file
  std::string name() const { return built_in ? std::string(built_in->name()) : file.name; }
  TaskMetric metric() const { return built_in ? built_in->metric() : file.metric; }
};

struct ReadyTask {
  std::string name;
  int length = 0;                // asked of the generator or as the most of a prompt; 0: neither
  std::optional<double> chance;  // where it is known
  double mean_shots = 0;         // solved questions that stand before each
  PreparedTask prepared;
};

// The forms of files that are asked for by a name in front: "hellaswag:FILE, piqa:FILE ...".
std::string TaskFileFormNames();
// Reads files; needs no model. "list" is not a task.
StatusOr<std::vector<ChosenTask>> ChooseTasks(const TaskChoiceOptions& options);
// Its examples, in tokens of the workspace's model.
StatusOr<ReadyTask> MakeReady(ChosenTask task, const TaskChoiceOptions& options,
                              const Workspace& workspace);

}  // namespace kvlathe
