// Built-in tasks as they are asked for, with parameters in brackets.
#include <algorithm>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/haystack.h"
#include "evaluation/tasks/parameters.h"

namespace kvlathe {
namespace {

struct ParameterTask {
  std::string_view name;
  TaskDefinition (*define)(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack);
  bool hides = false;  // in a haystack
};
constexpr ParameterTask kParameterTasks[] = {
    {"needle", NeedleTask, true}, {"variables", VariablesTask, true},
    {"frequent", FrequentTask},   {"json", JsonTask},
    {"tools", ToolsTask},
};

std::string AllNames() {
  std::string names;
  for (const Task* task : BuiltInTasks()) names += std::string(task->name()) + ", ";
  for (const ParameterTask& task : kParameterTasks) {
    names += (&task == kParameterTasks ? "" : ", ") + std::string(task.name);
  }
  return names;
}

StatusOr<std::shared_ptr<const Task>> WithoutParameters(const TaskParameters& parameters) {
  for (const Task* task : BuiltInTasks()) {
    if (task->name() != parameters.name()) continue;
    KVL_RETURN_IF_ERROR(parameters.Finish());
    // Built-in tasks are never destroyed.
    return std::shared_ptr<const Task>(std::shared_ptr<const Task>(), task);
  }
  return Error(StatusCode::kNotFound, "no task '{}'; there are {}", parameters.name(), AllNames());
}

Status HidesNothing(std::string_view name) {
  return Error(StatusCode::kInvalidArgument,
               "task {} hides nothing in a text; needle and variables do", name);
}

}  // namespace

std::vector<std::shared_ptr<const Task>> ParameterTasks() {
  std::vector<std::shared_ptr<const Task>> tasks;
  for (const ParameterTask& task : kParameterTasks) {
    tasks.push_back(MakeTask(task.name).value());
  }
  return tasks;
}

StatusOr<std::shared_ptr<const Task>> MakeTask(std::string_view text, const std::string& haystack) {
  KVL_ASSIGN_OR_RETURN(TaskParameters parameters, TaskParameters::Parse(text));
  const auto* task = std::ranges::find(kParameterTasks, parameters.name(), &ParameterTask::name);
  const bool is_found = task != std::end(kParameterTasks);
  if (!is_found) {
    KVL_ASSIGN_OR_RETURN(auto built_in, WithoutParameters(parameters));
    KVL_RETURN_IF_ERROR(haystack.empty() ? OkStatus() : HidesNothing(built_in->name()));
    return built_in;
  }
  if (!haystack.empty() && !task->hides) return HidesNothing(task->name);
  auto hidden_in = std::make_shared<Haystack>();
  if (!haystack.empty()) {
    KVL_ASSIGN_OR_RETURN(*hidden_in, Haystack::FromText(haystack));
  }
  TaskDefinition definition = task->define(parameters, std::move(hidden_in));
  KVL_RETURN_IF_ERROR(parameters.Finish());
  return ToTask(std::move(definition), parameters.text(), parameters.signature());
}

}  // namespace kvlathe
