#include "task_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "evaluation/metrics.h"

namespace kvlathe {
namespace {

// Beside prompt and answer: BOS and the stop text.
constexpr int kReservedTokens = 16;

StatusOr<ChosenTask> ChooseTask(const std::string& text, const TaskChoiceOptions& options) {
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

// The length asked for, or the task's own as far as the context goes.
int LengthOf(const Task& task, int asked, int context_tokens) {
  if (asked > 0) return asked;
  return std::max(std::min(task.default_length(), context_tokens - kReservedTokens),
                  task.min_length());
}

StatusOr<std::vector<TaskExample>> GenerateExamples(const Task& task, int length,
                                                    const TaskChoiceOptions& options,
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

}  // namespace

StatusOr<std::vector<ChosenTask>> ChooseTasks(const TaskChoiceOptions& options) {
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

StatusOr<ReadyTask> MakeReady(ChosenTask task, const TaskChoiceOptions& options,
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

void AddTaskChoiceOptions(CLI::App* verb, TaskChoiceOptions* options) {
  CLI::Option* task = verb->add_option(
      "--task", options->tasks,
      "a built-in task, all, list, FILE.jsonl, gsm8k:FILE or humaneval:FILE; may repeat");
  verb->add_option("--task-length", options->length,
                   "tokens of prompt and answer (default: the task's, as far as the context goes)")
      ->check(CLI::Range(1, 1 << 30))
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
}

}  // namespace kvlathe
