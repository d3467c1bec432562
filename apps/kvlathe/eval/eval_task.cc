#include "kvlathe/eval/eval_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/task_predictions.h"
#include "io/atomic_file.h"
#include "kvlathe/draft_options.h"
#include "kvlathe/eval/task_options.h"
#include "kvlathe/open_workspace.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// The uncompressed model's predictions of one task, from a file or from this call.
struct Baseline {
  std::vector<TaskPrediction> predictions;
  MeanScore score;
};

struct TaskRow {
  std::string kv, kv_resolved;
  std::optional<double> predicted_kl;  // where it decided the cache
  const ReadyTask* task = nullptr;
  TaskResult result;
  std::optional<TaskChange> change;  // from the baseline, where there is one
  std::optional<bool> decides;       // where chance is known
};

// Scores this many standard errors above chance tell a cache that harms from one that does not.
constexpr double kDecidingErrors = 3;

void Compare(const std::optional<Baseline>& baseline, TaskRow* row) {
  MeanScore score = {row->result.score, row->result.score_stderr};
  if (baseline.has_value()) {
    row->change = ChangeFrom(baseline->predictions, row->result.predictions);
    score = baseline->score;
  }
  if (!row->task->chance.has_value()) return;
  // A score of 0 where chance is 0 too has no error, and nothing that a cache could lose.
  const double above = score.mean - *row->task->chance;
  row->decides = above > 0 && above >= kDecidingErrors * score.standard_error;
}

Json ToJson(const TaskRow& row) {
  const ReadyTask& task = *row.task;
  const TaskResult& result = row.result;
  Json json = {{"kv", row.kv},
               {"kv_resolved", row.kv_resolved},
               {"kv_fraction", result.kv_fraction},
               {"task", task.name},
               {"metric", MetricName(task.prepared.metric)},
               {"score", result.score},
               {"score_stderr", result.score_stderr},
               {"chance", nullptr},
               {"count", result.predictions.size()},
               {"length", nullptr},
               {"shots", task.mean_shots},
               {"prompt_tokens", task.prepared.mean_prompt_tokens()}};
  if (task.chance.has_value()) json["chance"] = *task.chance;
  if (task.length > 0) json["length"] = task.length;
  if (result.acc.has_value()) {
    json["acc"] = result.acc->mean;
    json["acc_stderr"] = result.acc->standard_error;
    for (const char* field : {"acc_norm", "acc_norm_stderr"}) json[field] = nullptr;
    if (result.acc_norm.has_value()) {
      json["acc_norm"] = result.acc_norm->mean;
      json["acc_norm_stderr"] = result.acc_norm->standard_error;
    }
  }
  if (result.calls.has_value()) {
    json["valid_json"] = result.calls->is_json;
    json["right_tool"] = result.calls->names_tool;
    json["right_arguments"] = result.calls->has_arguments;
  }
  for (const char* field : {"flips", "score_change", "score_change_stderr", "decides", "parted_at",
                            "parted_at_median", "never_parted_share"}) {
    json[field] = nullptr;
  }
  if (row.predicted_kl.has_value()) json["predicted_kl"] = *row.predicted_kl;
  if (row.change.has_value()) {
    json["flips"] = row.change->flips;
    json["score_change"] = row.change->score_change.mean;
    json["score_change_stderr"] = row.change->score_change.standard_error;
    if (const std::optional<TaskParting>& parting = row.change->parting) {
      json["parted_at"] = parting->mean;
      json["parted_at_median"] = parting->median;
      json["never_parted_share"] = parting->never;
    }
  }
  if (row.decides.has_value()) json["decides"] = *row.decides;
  return json;
}

std::string ChangeColumns(const TaskRow& row) {
  if (!row.change.has_value()) return fmt::format("  {:>18}  {:>7}", "-", "-");
  const MeanScore& change = row.change->score_change;
  return fmt::format("  {:>+8.4f} +- {:>6.4f}  {:>6.1f}%", change.mean, change.standard_error,
                     100 * row.change->flips);
}

std::string ToTable(const std::vector<TaskRow>& rows) {
  size_t kv_width = 2, task_width = 4;
  bool has_change = false;
  for (const TaskRow& row : rows) {
    kv_width = std::max(kv_width, row.kv.size());
    task_width = std::max(task_width, row.task->name.size());
    has_change = has_change || row.change.has_value();
  }
  std::string table =
      fmt::format("{:<{}}  {:>9}  {:<{}}  {:<15}  {:>17}{}  {:>7}  {:>5}  {:>13}\n", "kv", kv_width,
                  "KV size %", "task", task_width, "metric", "score",
                  has_change ? fmt::format("  {:>18}  {:>7}", "change from none", "flips") : "",
                  "chance", "count", "prompt tokens");
  for (const TaskRow& row : rows) {
    const PreparedTask& task = row.task->prepared;
    table += fmt::format(
        "{:<{}}  {:>9.2f}  {:<{}}  {:<15}  {:>7.4f} +- {:>6.4f}{}  {:>7}  {:>5}  {:>13.0f}\n",
        row.kv, kv_width, 100 * row.result.kv_fraction, row.task->name, task_width,
        MetricName(task.metric), row.result.score, row.result.score_stderr,
        has_change ? ChangeColumns(row) : "",
        row.task->chance.has_value() ? fmt::format("{:.2g}", *row.task->chance) : "-",
        row.result.predictions.size(), task.mean_prompt_tokens());
  }
  return table;
}

Status WritePredictions(const TaskRow& row, AtomicFile* file) {
  const PredictionSource source = {row.kv, row.kv_resolved, row.task->name};
  for (size_t i = 0; i < row.result.predictions.size(); ++i) {
    const std::string line =
        PredictionLine(source, i, row.task->prepared.examples[i], row.result.predictions[i]);
    KVL_RETURN_IF_ERROR(file->Write(line.data(), static_cast<int64_t>(line.size())));
  }
  return OkStatus();
}

// Of every task; none without a file.
StatusOr<std::vector<std::optional<Baseline>>> ReadBaselines(const std::string& path,
                                                             const std::vector<ReadyTask>& tasks) {
  std::vector<std::optional<Baseline>> baselines(tasks.size());
  for (size_t i = 0; i < tasks.size() && !path.empty(); ++i) {
    Baseline& baseline = baselines[i].emplace();
    KVL_ASSIGN_OR_RETURN(baseline.predictions,
                         ReadBaseline(path, tasks[i].name, tasks[i].prepared));
    std::vector<double> scores;
    for (const TaskPrediction& p : baseline.predictions) scores.push_back(p.score);
    baseline.score = MeanOf(scores);
  }
  return baselines;
}

// Rows come task by task for each cache. Without a file the row of the uncompressed cache is the
// baseline of its task, wherever it stands.
void CompareAll(std::vector<std::optional<Baseline>> baselines, std::vector<TaskRow>* rows) {
  const size_t n_tasks = baselines.size();
  for (size_t r = 0; r < rows->size(); ++r) {
    std::optional<Baseline>& baseline = baselines[r % n_tasks];
    const TaskRow& row = (*rows)[r];
    if (baseline.has_value() || row.kv_resolved != "none") continue;
    baseline = {row.result.predictions, {row.result.score, row.result.score_stderr}};
  }
  for (size_t r = 0; r < rows->size(); ++r) Compare(baselines[r % n_tasks], &(*rows)[r]);
}

StatusOr<std::vector<TaskRow>> RunTasks(const std::vector<std::string>& specs,
                                        const std::vector<ReadyTask>& tasks,
                                        const std::optional<DraftOptions>& draft,
                                        Workspace* workspace, AtomicFile* predictions) {
  std::vector<TaskRow> rows;
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const SpecModel spec_model, workspace->MakeModel(kv));
    KVL_RETURN_IF_ERROR(CheckDraft(draft, spec_model));
    for (const ReadyTask& task : tasks) {
      Progress progress;
      if (const Progress terminal = workspace->progress()) {
        progress = [&, terminal](const std::string&, double fraction) {
          terminal(fmt::format("{} with {}", task.name, kv), fraction);
        };
      }
      TaskRow row{kv, spec_model.spec.ToString(), spec_model.predicted_kl, &task, {}, {}, {}};
      KVL_ASSIGN_OR_RETURN(row.result,
                           RunTask(spec_model.model.get(), workspace->tokenizer(), task.prepared,
                                   workspace->kv_budget_bytes(), progress, 0, draft));
      if (predictions != nullptr) KVL_RETURN_IF_ERROR(WritePredictions(row, predictions));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

void ListTasks(bool as_json) {
  Json list = Json::array();
  std::vector<std::shared_ptr<const Task>> tasks = ParameterTasks();
  for (size_t i = 0; const Task* task : BuiltInTasks()) {
    tasks.insert(tasks.begin() + i++, *MakeTask(task->name()));
  }
  for (const auto& task : tasks) {
    if (as_json) {
      list.push_back({{"name", task->name()},
                      {"description", task->description()},
                      {"metric", MetricName(task->metric())},
                      {"chance", task->chance()},
                      {"default_length", task->default_length()},
                      {"min_length", task->min_length()},
                      {"parameters", task->parameters()}});
    } else {
      const std::string takes = task->parameters().empty()
                                    ? ""
                                    : fmt::format("; {}({})", task->name(), task->parameters());
      fmt::print("{:<11} {:<15} chance {:<8.2g} {:>4} tokens (at least {:>3})  {}{}\n",
                 task->name(), MetricName(task->metric()), task->chance(), task->default_length(),
                 task->min_length(), task->description(), takes);
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
  verb->add_option(
          "--baseline", options->baseline,
          "predictions of --kv none of the same tasks, for flips, score_change and parted_at; "
          "without it those of --kv none of this call")
      ->needs(verb->get_option("--task"));
  AddDraftOption(verb, &options->draft);
  verb->get_option("--draft")->needs(verb->get_option("--task"));
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
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(model));
  std::vector<ReadyTask> tasks;
  for (ChosenTask& task : chosen) {
    KVL_ASSIGN_OR_RETURN(ReadyTask ready, MakeReady(std::move(task), options.choice, *workspace));
    tasks.push_back(std::move(ready));
  }
  const std::vector<std::string> specs =
      model.kv.empty() ? std::vector<std::string>{"none"} : model.kv;
  KVL_ASSIGN_OR_RETURN(auto baselines, ReadBaselines(options.baseline, tasks));
  KVL_ASSIGN_OR_RETURN(std::vector<TaskRow> rows,
                       RunTasks(specs, tasks, ParseDraft(options.draft), workspace.get(),
                                predictions.has_value() ? &*predictions : nullptr));
  if (predictions.has_value()) KVL_RETURN_IF_ERROR(predictions->Commit());
  CompareAll(std::move(baselines), &rows);
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
