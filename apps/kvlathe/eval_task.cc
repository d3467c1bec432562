#include "eval_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "evaluation/metrics.h"
#include "io/atomic_file.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

struct TaskRow {
  std::string kv, kv_resolved;
  const ReadyTask* task = nullptr;
  TaskResult result;
};

Json ToJson(const TaskRow& row) {
  const ReadyTask& task = *row.task;
  Json json = {{"kv", row.kv},
               {"kv_resolved", row.kv_resolved},
               {"kv_fraction", row.result.kv_fraction},
               {"task", task.name},
               {"metric", MetricName(task.prepared.metric)},
               {"score", row.result.score},
               {"score_stderr", row.result.score_stderr},
               {"chance", nullptr},
               {"count", row.result.predictions.size()},
               {"length", nullptr},
               {"prompt_tokens", task.prepared.mean_prompt_tokens()}};
  if (task.chance.has_value()) json["chance"] = *task.chance;
  if (task.length > 0) json["length"] = task.length;
  return json;
}

std::string ToTable(const std::vector<TaskRow>& rows) {
  size_t kv_width = 2, task_width = 4;
  for (const TaskRow& row : rows) {
    kv_width = std::max(kv_width, row.kv.size());
    task_width = std::max(task_width, row.task->name.size());
  }
  std::string table = fmt::format("{:<{}}  {:>9}  {:<{}}  {:<15}  {:>17}  {:>7}  {:>5}  {:>13}\n",
                                  "kv", kv_width, "KV size %", "task", task_width, "metric",
                                  "score", "chance", "count", "prompt tokens");
  for (const TaskRow& row : rows) {
    const PreparedTask& task = row.task->prepared;
    table += fmt::format(
        "{:<{}}  {:>9.2f}  {:<{}}  {:<15}  {:>7.4f} +- {:>6.4f}  {:>7}  {:>5}  {:>13.0f}\n", row.kv,
        kv_width, 100 * row.result.kv_fraction, row.task->name, task_width, MetricName(task.metric),
        row.result.score, row.result.score_stderr,
        row.task->chance.has_value() ? fmt::format("{:.2g}", *row.task->chance) : "-",
        row.result.predictions.size(), task.mean_prompt_tokens());
  }
  return table;
}

Status WritePredictions(const TaskRow& row, AtomicFile* file) {
  for (size_t i = 0; i < row.result.predictions.size(); ++i) {
    const TaskExample& example = row.task->prepared.examples[i].text;
    const TaskPrediction& prediction = row.result.predictions[i];
    const Json json = {{"kv", row.kv},
                       {"task", row.task->name},
                       {"prompt", example.prompt},
                       {"output", prediction.output},
                       {"reference", example.references[0]},
                       {"score", prediction.score}};
    const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    KVL_RETURN_IF_ERROR(file->Write(line.data(), static_cast<int64_t>(line.size())));
  }
  return OkStatus();
}

StatusOr<std::vector<TaskRow>> RunTasks(const std::vector<std::string>& specs,
                                        const std::vector<ReadyTask>& tasks, Workspace* workspace,
                                        AtomicFile* predictions) {
  std::vector<TaskRow> rows;
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const SpecModel spec_model, workspace->MakeModel(kv));
    for (const ReadyTask& task : tasks) {
      Progress progress;
      if (const Progress terminal = workspace->progress()) {
        progress = [&, terminal](const std::string&, double fraction) {
          terminal(fmt::format("{} with {}", task.name, kv), fraction);
        };
      }
      TaskRow row{kv, spec_model.spec.ToString(), &task, {}};
      KVL_ASSIGN_OR_RETURN(row.result,
                           RunTask(spec_model.model.get(), workspace->tokenizer(), task.prepared,
                                   workspace->kv_budget_bytes(), progress));
      if (predictions != nullptr) KVL_RETURN_IF_ERROR(WritePredictions(row, predictions));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

void ListTasks(bool as_json) {
  Json list = Json::array();
  for (const Task* task : BuiltInTasks()) {
    if (as_json) {
      list.push_back({{"name", task->name()},
                      {"description", task->description()},
                      {"metric", MetricName(task->metric())},
                      {"chance", task->chance()},
                      {"default_length", task->default_length()},
                      {"min_length", task->min_length()}});
    } else {
      fmt::print("{:<11} {:<15} chance {:<8.2g} {:>4} tokens (at least {:>3})  {}\n", task->name(),
                 MetricName(task->metric()), task->chance(), task->default_length(),
                 task->min_length(), task->description());
    }
  }
  if (as_json) fmt::print("{}\n", Json{{"tasks", std::move(list)}}.dump());
}

}  // namespace

void AddTaskOptions(CLI::App* verb, TaskEvalOptions* options) {
  AddTaskChoiceOptions(verb, &options->choice);
  verb->add_option("--predictions", options->predictions,
                   "file for one JSON line per example: prompt, output, reference, score")
      ->needs(verb->get_option("--task"));
}

Status EvalTasks(const ModelOptions& model, const TaskEvalOptions& options) {
  const std::vector<std::string>& names = options.choice.tasks;
  if (std::find(names.begin(), names.end(), "list") != names.end()) {
    ListTasks(model.json);
    return OkStatus();
  }
  // What can be wrong is looked at before anything takes time.
  KVL_ASSIGN_OR_RETURN(std::vector<ChosenTask> chosen, ChooseTasks(options.choice));
  std::optional<AtomicFile> predictions;
  if (!options.predictions.empty()) {
    KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(options.predictions));
    predictions.emplace(std::move(file));
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(model));
  std::vector<ReadyTask> tasks;
  for (ChosenTask& task : chosen) {
    KVL_ASSIGN_OR_RETURN(ReadyTask ready, MakeReady(std::move(task), options.choice, *workspace));
    tasks.push_back(std::move(ready));
  }
  const std::vector<std::string> specs =
      model.kv.empty() ? std::vector<std::string>{"none"} : model.kv;
  KVL_ASSIGN_OR_RETURN(
      const std::vector<TaskRow> rows,
      RunTasks(specs, tasks, workspace.get(), predictions.has_value() ? &*predictions : nullptr));
  if (predictions.has_value()) KVL_RETURN_IF_ERROR(predictions->Commit());
  if (!model.json) {
    fmt::print("{}", ToTable(rows));
  } else if (rows.size() == 1) {
    fmt::print("{}\n", ToJson(rows[0]).dump());
  } else {
    Json list = Json::array();
    for (const TaskRow& row : rows) list.push_back(ToJson(row));
    fmt::print("{}\n", Json{{"model", model.model}, {"rows", std::move(list)}}.dump());
  }
  return OkStatus();
}

}  // namespace kvlathe
