#include "eval_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "evaluation/metrics.h"
#include "evaluation/task_files.h"
#include "evaluation/task_run.h"
#include "evaluation/tasks/task.h"
#include "io/atomic_file.h"
#include "workspace.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// Beside prompt and answer: BOS and the stop text.
constexpr int kReservedTokens = 16;

// A task as asked for: built in, or the examples of a file.
struct ChosenTask {
  const Task* built_in = nullptr;
  TaskFile file;
  std::string name() const { return built_in ? std::string(built_in->name()) : file.name; }
  TaskMetric metric() const { return built_in ? built_in->metric() : file.metric; }
};

struct ReadyTask {
  std::string name;
  int length = 0;                // asked of the generator; 0 for a file
  std::optional<double> chance;  // where it is known
  PreparedTask prepared;
};

struct TaskRow {
  std::string kv, kv_resolved;
  const ReadyTask* task = nullptr;
  TaskResult result;
};

StatusOr<ChosenTask> ChooseTask(const std::string& text, const TaskEvalOptions& options) {
  constexpr std::string_view kGsm8k = "gsm8k:", kHumanEval = "humaneval:";
  ChosenTask task;
  if (text.starts_with(kGsm8k)) {
    FewShots shots;
    if (!options.shots.empty()) {
      KVL_ASSIGN_OR_RETURN(shots, ReadFewShots(options.shots));
    }
    KVL_ASSIGN_OR_RETURN(task.file, ReadGsm8k(text.substr(kGsm8k.size()), shots));
  } else if (text.starts_with(kHumanEval)) {
    KVL_ASSIGN_OR_RETURN(task.file, ReadHumanEval(text.substr(kHumanEval.size())));
  } else if (text.ends_with(".jsonl") || text.find('/') != std::string::npos) {
    KVL_ASSIGN_OR_RETURN(task.file, ReadTaskFile(text));
  } else {
    const StatusOr<const Task*> found = FindTask(text);
    if (!found.ok()) {
      return Error(StatusCode::kInvalidArgument,
                   "--task {}: {}; or give all, list, FILE.jsonl, gsm8k:FILE or humaneval:FILE",
                   text, MessageOf(found.status()));
    }
    task.built_in = *found;
  }
  if (task.built_in == nullptr && options.length > 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--task {}: --task-length is for built-in tasks; the examples of a file have the "
                 "length that they have",
                 text);
  }
  return task;
}

StatusOr<std::vector<ChosenTask>> ChooseTasks(const TaskEvalOptions& options) {
  std::vector<ChosenTask> tasks;
  bool uses_shots = false;
  for (const std::string& text : options.tasks) {
    if (text == "all") {
      for (const Task* task : BuiltInTasks()) tasks.push_back({task, {}});
      continue;
    }
    uses_shots |= text.starts_with("gsm8k:");
    KVL_ASSIGN_OR_RETURN(ChosenTask task, ChooseTask(text, options));
    tasks.push_back(std::move(task));
  }
  if (!options.shots.empty() && !uses_shots) {
    return Error(StatusCode::kInvalidArgument, "--shots is for --task gsm8k:FILE");
  }
  return tasks;
}

// The length asked for, or the task's own as far as the context goes.
int LengthOf(const Task& task, int asked, int context_tokens) {
  if (asked > 0) return asked;
  return std::max(std::min(task.default_length(), context_tokens - kReservedTokens),
                  task.min_length());
}

StatusOr<std::vector<TaskExample>> GenerateExamples(const Task& task, int length,
                                                    const TaskEvalOptions& options,
                                                    const Tokenizer& tokenizer) {
  const TokenCounter count_tokens = [&](std::string_view text) {
    return static_cast<int>(
        tokenizer.Tokenize(text, /*add_bos=*/false, /*parse_special=*/false).size());
  };
  std::vector<TaskExample> examples;
  for (int i = 0; i < options.count; ++i) {
    KVL_ASSIGN_OR_RETURN(TaskExample example,
                         task.Generate({TaskSplit::kTest, options.seed, length}, i, count_tokens));
    examples.push_back(std::move(example));
  }
  return examples;
}

// What blind choice scores.
std::optional<double> ChanceOf(const TaskFile& file, size_t n_examples) {
  if (file.metric != TaskMetric::kChoice) return std::nullopt;
  double sum = 0;
  for (size_t i = 0; i < n_examples; ++i) sum += 1.0 / file.examples[i].choices.size();
  return sum / static_cast<double>(n_examples);
}

StatusOr<ReadyTask> MakeReady(ChosenTask task, const TaskEvalOptions& options,
                              const Workspace& workspace) {
  ReadyTask ready;
  ready.name = task.name();
  std::vector<TaskExample> examples;
  if (task.built_in != nullptr) {
    ready.length = LengthOf(*task.built_in, options.length, workspace.context_tokens());
    ready.chance = task.built_in->chance();
    KVL_ASSIGN_OR_RETURN(
        examples, GenerateExamples(*task.built_in, ready.length, options, workspace.tokenizer()));
  } else {
    examples = task.file.examples;
    examples.resize(std::min<size_t>(examples.size(), options.count));
    ready.chance = ChanceOf(task.file, examples.size());
  }
  auto prepared = PrepareTask(task.metric(), std::move(examples), workspace.tokenizer(),
                              workspace.config(), workspace.context_tokens());
  if (!prepared.ok()) {
    return Error(prepared.status().code(), "task {}, {}", ready.name, MessageOf(prepared.status()));
  }
  ready.prepared = *std::move(prepared);
  return ready;
}

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
  CLI::Option* task = verb->add_option(
      "--task", options->tasks,
      "a built-in task, all, list, FILE.jsonl, gsm8k:FILE or humaneval:FILE; may repeat");
  verb->add_option("--task-length", options->length,
                   "tokens of prompt and answer (default: the task's, as far as the context goes)")
      ->check(CLI::PositiveNumber)
      ->needs(task);
  verb->add_option("--task-count", options->count, "examples")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str()
      ->needs(task);
  verb->add_option("-s,--seed", options->seed, "seed of the examples of built-in tasks")
      ->capture_default_str()
      ->needs(task);
  verb->add_option("--shots", options->shots,
                   "solved questions before those of gsm8k: a prompt file or a train .jsonl")
      ->needs(task);
  verb->add_option("--predictions", options->predictions,
                   "file for one JSON line per example: prompt, output, reference, score")
      ->needs(task);
}

Status EvalTasks(const ModelOptions& model, const TaskEvalOptions& options) {
  if (std::find(options.tasks.begin(), options.tasks.end(), "list") != options.tasks.end()) {
    ListTasks(model.json);
    return OkStatus();
  }
  // What can be wrong is looked at before anything takes time.
  KVL_ASSIGN_OR_RETURN(std::vector<ChosenTask> chosen, ChooseTasks(options));
  std::optional<AtomicFile> predictions;
  if (!options.predictions.empty()) {
    KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(options.predictions));
    predictions.emplace(std::move(file));
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(model));
  std::vector<ReadyTask> tasks;
  for (ChosenTask& task : chosen) {
    KVL_ASSIGN_OR_RETURN(ReadyTask ready, MakeReady(std::move(task), options, *workspace));
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
