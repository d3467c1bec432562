#include "runtime/measuring/task_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/big_bench_hard.h"
#include "evaluation/task_runs/choice_files.h"
#include "evaluation/task_runs/longbench.h"
#include "evaluation/task_runs/task_shots.h"
#include "evaluation/task_runs/word_problems.h"
#include "io/files.h"

namespace kvlathe {
namespace {

// Beside prompt and answer: BOS and the stop text.
constexpr int kReservedTokens = 16;

// What --shots and --shot-tokens ask for.
struct ShotsAsked {
  std::string file;
  ShotRule rule;
  bool any() const { return !file.empty() || rule.asks_for_any(); }
};

// An argument that is a whole number is one; "./8" is a file.
StatusOr<ShotsAsked> ParseShots(const TaskChoiceOptions& options) {
  const std::string& text = options.shots;
  ShotsAsked asked{"", {0, options.shot_tokens}};
  if (text.empty()) return asked;
  if (options.shot_tokens > 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--shots and --shot-tokens both say how many shots there are; give one of them");
  }
  if (text.find_first_not_of("0123456789") != std::string::npos) {
    asked.file = text;
    return asked;
  }
  if (std::from_chars(text.data(), text.data() + text.size(), asked.rule.count).ec != std::errc()) {
    return Error(StatusCode::kInvalidArgument, "--shots {}: is too many", text);
  }
  return asked;
}

StatusOr<TaskFile> ReadGsm8kWith(const std::string& path, const std::string& shots_path) {
  if (shots_path.empty()) return ReadGsm8k(path, {});
  KVL_ASSIGN_OR_RETURN(const FewShots shots, ReadFewShots(shots_path));
  return ReadGsm8k(path, shots);
}

StatusOr<TaskFile> ReadAquaWith(const std::string& path, const std::string& shots_path) {
  if (shots_path.empty()) return ReadAqua(path, AquaForm());
  KVL_ASSIGN_OR_RETURN(const FewShots shots, ReadAquaShots(shots_path));
  return ReadAqua(path, shots);
}

StatusOr<TaskFile> ReadBigBenchHardWith(const std::string& path, const std::string& shots_path) {
  if (shots_path.empty()) return ReadBigBenchHard(path, BigBenchHardForm());
  KVL_ASSIGN_OR_RETURN(const FewShots shots, ReadBigBenchHardShots(shots_path));
  return ReadBigBenchHard(path, shots);
}

// A form of files that is asked for by its name before a colon.
struct FileForm {
  std::string_view prefix;
  StatusOr<TaskFile> (*read)(const std::string& path);
  // For forms whose shots may come from a file, which is read instead; null for others.
  StatusOr<TaskFile> (*read_with)(const std::string& path, const std::string& shots_path);
};
constexpr FileForm kFileForms[] = {
    {"hellaswag:", ReadHellaSwag, nullptr},
    {"piqa:", ReadPiqa, nullptr},
    {"arc:", ReadArc, nullptr},
    {"winogrande:", ReadWinoGrande, nullptr},
    {"gsm8k:", nullptr, ReadGsm8kWith},
    {"aqua:", nullptr, ReadAquaWith},
    {"bbh:", nullptr, ReadBigBenchHardWith},
    {"longbench:", ReadLongBench, nullptr},
    {"humaneval:", ReadHumanEval, nullptr},
};

StatusOr<TaskFile> ReadFormOf(const std::string& text, const FileForm* form,
                              const ShotsAsked& shots) {
  if (!shots.file.empty() && (form == nullptr || form->read_with == nullptr)) {
    return Error(
        StatusCode::kInvalidArgument,
        "--task {}: --shots FILE is for gsm8k, aqua and bbh; --shots N takes a number of solved "
        "questions from the task's own file",
        text);
  }
  if (form == nullptr) return ReadTaskFile(text);
  const std::string path = text.substr(form->prefix.size());
  return form->read_with != nullptr ? form->read_with(path, shots.file) : form->read(path);
}

StatusOr<std::shared_ptr<const Task>> MakeBuiltIn(const std::string& text,
                                                  const std::string& haystack) {
  auto task = MakeTask(text, haystack);
  if (task.ok()) return task;
  if (task.status().code() != StatusCode::kNotFound) {
    return Error(StatusCode::kInvalidArgument, "--task {}: {}", text, MessageOf(task.status()));
  }
  return Error(StatusCode::kInvalidArgument, "--task {}: {}; or give all, list, FILE.jsonl, or {}",
               text, MessageOf(task.status()), TaskFileFormNames());
}

// What built-in tasks hide things in; empty without --task-text.
StatusOr<std::string> ReadHaystack(const std::string& path) {
  if (path.empty()) return "";
  KVL_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  if (text.find_first_not_of(" \t\n\v\f\r") == std::string::npos) {
    return Error(StatusCode::kInvalidArgument, "--task-text {}: has no words to hide things among",
                 path);
  }
  return text;
}

StatusOr<ChosenTask> ChooseTask(const std::string& text, const TaskChoiceOptions& options,
                                const ShotsAsked& shots, const std::string& haystack) {
  const FileForm* form =
      std::find_if(std::begin(kFileForms), std::end(kFileForms),
                   [&](const FileForm& f) { return text.starts_with(f.prefix); });
  if (form == std::end(kFileForms)) form = nullptr;
  ChosenTask task;
  if (form != nullptr || text.ends_with(".jsonl") || text.find('/') != std::string::npos) {
    KVL_ASSIGN_OR_RETURN(task.file, ReadFormOf(text, form, shots));
    KVL_RETURN_IF_ERROR(CheckShots(task.file, shots.rule));
    task.asked_as = text;
  } else {
    KVL_ASSIGN_OR_RETURN(task.built_in, MakeBuiltIn(text, haystack));
  }
  if (task.built_in == nullptr && !haystack.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--task {}: --task-text is for the built-in tasks needle and variables", text);
  }
  if (task.built_in == nullptr && options.length > 0 && !task.file.cuts_middle) {
    return Error(StatusCode::kInvalidArgument,
                 "--task {}: --task-length is for built-in tasks and longbench; the examples of a "
                 "file have the length that they have",
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

// The prompts, `most_tokens` long at most; 0: as long as they may be for the answer to fit.
void CutPrompts(int most_tokens, int context_tokens, const Tokenizer& tokenizer,
                std::vector<TaskExample>* examples) {
  for (TaskExample& example : *examples) {
    int n_most = most_tokens;
    if (n_most == 0) {
      size_t n_answer = static_cast<size_t>(example.room_tokens);
      for (const std::string& reference : example.references) {
        n_answer = std::max(n_answer, tokenizer
                                          .Tokenize(reference, /*add_bos=*/false,
                                                    /*parse_special=*/false)
                                          .size());
      }
      n_most = context_tokens - kReservedTokens -
               static_cast<int>(std::min(n_answer, static_cast<size_t>(context_tokens)));
    }
    example.prompt = WithoutMiddle(example.prompt, std::max(n_most, 2), tokenizer);
  }
}

// Several files of one form are told apart by their paths.
void NameByPaths(std::vector<ChosenTask>* tasks) {
  std::map<std::string, int> counts;
  for (const ChosenTask& task : *tasks) ++counts[task.name()];
  for (ChosenTask& task : *tasks) {
    if (task.built_in == nullptr && counts[task.name()] > 1) task.file.name = task.asked_as;
  }
}

}  // namespace

std::string TaskFileFormNames() {
  std::string names;
  for (const FileForm& form : kFileForms) {
    names += fmt::format("{}{}FILE", names.empty() ? "" : ", ", form.prefix);
  }
  return names;
}

StatusOr<std::vector<ChosenTask>> ChooseTasks(const TaskChoiceOptions& options) {
  std::vector<ChosenTask> tasks;
  KVL_ASSIGN_OR_RETURN(const ShotsAsked shots, ParseShots(options));
  KVL_ASSIGN_OR_RETURN(const std::string haystack, ReadHaystack(options.text_path));
  for (const std::string& text : options.tasks) {
    if (text == "all") {
      for (const Task* task : BuiltInTasks()) {
        KVL_ASSIGN_OR_RETURN(auto built_in, MakeBuiltIn(std::string(task->name()), haystack));
        tasks.push_back({std::move(built_in), {}, {}});
      }
      continue;
    }
    KVL_ASSIGN_OR_RETURN(ChosenTask task, ChooseTask(text, options, shots, haystack));
    tasks.push_back(std::move(task));
  }
  NameByPaths(&tasks);
  for (const ChosenTask& task : tasks) {
    if (task.built_in != nullptr && shots.any()) {
      return Error(StatusCode::kInvalidArgument,
                   "--task {}: built-in tasks take no shots; run it without --shots and "
                   "--shot-tokens",
                   task.name());
    }
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
    KVL_ASSIGN_OR_RETURN(const ShotsAsked shots, ParseShots(options));
    const TokenCounter count_tokens = [&](std::string_view text) {
      return static_cast<int>(
          workspace.tokenizer().Tokenize(text, /*add_bos=*/true, /*parse_special=*/false).size());
    };
    KVL_ASSIGN_OR_RETURN(ShotExamples with_shots,
                         AddShots(task.file, options.count, shots.rule, count_tokens));
    examples = std::move(with_shots.examples);
    if (task.file.cuts_middle) {
      ready.length = options.length;
      CutPrompts(options.length, workspace.context_tokens(), workspace.tokenizer(), &examples);
    }
    ready.mean_shots = with_shots.mean_shots;
    ready.chance = ChanceOf(task.file, examples.size());
  }
  auto prepared = PrepareTask(task.metric(), std::move(examples), workspace.tokenizer(),
                              workspace.config(), workspace.context_tokens());
  if (!prepared.ok()) {
    return Error(prepared.status().code(), "task {}, {}", ready.name, MessageOf(prepared.status()));
  }
  ready.prepared = *std::move(prepared);
  ready.prepared.norm_leads = task.file.norm_leads;
  return ready;
}

}  // namespace kvlathe
