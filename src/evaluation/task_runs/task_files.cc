#include "evaluation/task_runs/task_files.h"

#include <algorithm>
#include <array>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/task_lines.h"

namespace kvlathe {
namespace {

// Of HumanEval: what stands at the beginning of a line only behind the end of a function. The first
// five are those of its authors (Chen et al. 2021), who also let a program have so many tokens.
constexpr std::array<const char*, 7> kFunctionEnds = {"\nclass ", "\ndef ", "\n#",  "\nif ",
                                                      "\nprint(", "\n@",    "\n```"};
constexpr int kProgramTokens = 512;

StatusOr<TaskMetric> MetricOf(const TaskLine& line, std::optional<TaskMetric> so_far) {
  if (!line.Has("metric")) {
    const bool has_choices = line.Has("choices");
    return so_far.value_or(has_choices ? TaskMetric::kChoice : TaskMetric::kExactMatch);
  }
  KVL_ASSIGN_OR_RETURN(const std::string name, line.Text("metric"));
  const StatusOr<TaskMetric> metric = ParseMetric(name);
  if (!metric.ok()) return line.Refuse("{}", MessageOf(metric.status()));
  if (so_far.has_value() && *so_far != *metric) {
    return line.Refuse("metric \"{}\" after lines with \"{}\"; put them in files of their own",
                       name, MetricName(*so_far));
  }
  return *metric;
}

Status ReadChoices(const TaskLine& line, TaskExample* example) {
  if (!line.Has("choices")) {
    return line.Refuse("metric choice without \"choices\"; list the continuations to weigh");
  }
  KVL_ASSIGN_OR_RETURN(example->choices, line.Texts("choices"));
  const std::vector<std::string>& choices = example->choices;
  if (choices.size() < 2) return line.Refuse("one choice is none; list two or more");
  if (std::find(choices.begin(), choices.end(), "") != choices.end()) {
    return line.Refuse("an empty choice has no likelihood; give it text");
  }
  if (std::find(choices.begin(), choices.end(), example->references[0]) == choices.end()) {
    return line.Refuse("the reference \"{}\" is not among the choices, byte for byte",
                       example->references[0]);
  }
  return OkStatus();
}

StatusOr<TaskExample> ReadExample(const TaskLine& line, TaskMetric metric) {
  TaskExample example;
  KVL_ASSIGN_OR_RETURN(example.prompt, line.Text("prompt"));
  if (example.prompt.empty()) return line.Refuse("the prompt is empty; there is nothing to go on");
  if (line.Has("references")) {
    KVL_ASSIGN_OR_RETURN(example.references, line.Texts("references"));
  } else {
    KVL_ASSIGN_OR_RETURN(std::string reference, line.Text("reference"));
    example.references.push_back(std::move(reference));
  }
  if (line.Has("stop")) {
    KVL_ASSIGN_OR_RETURN(example.stop, line.Text("stop"));
    if (example.stop.empty()) return line.Refuse("\"stop\" is empty; leave it out or give text");
  }
  for (const std::string& reference : example.references) {
    if (reference.find(example.stop) != std::string::npos) {
      return line.Refuse("a reference contains the stop text {}, so no output can equal it",
                         nlohmann::json(example.stop).dump());
    }
    if (metric == TaskMetric::kFinalAnswer && !FinalAnswer(reference).has_value()) {
      return line.Refuse("a reference has no number, which metric final_answer compares");
    }
    if (metric == TaskMetric::kOptionLetter && !OptionLetter(reference).has_value()) {
      return line.Refuse("a reference has no letter A to E, which metric option_letter compares");
    }
  }
  if (metric == TaskMetric::kFound) {
    for (const std::string& reference : example.references) {
      example.whole_answer += (example.whole_answer.empty() ? "" : ", ") + reference;
    }
  }
  if (metric == TaskMetric::kChoice) {
    KVL_RETURN_IF_ERROR(ReadChoices(line, &example));
  } else if (line.Has("choices")) {
    return line.Refuse("\"choices\" go with metric choice, and this file's is {}",
                       MetricName(metric));
  }
  return example;
}

std::string NameOf(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(".jsonl")) name.resize(name.size() - 6);
  return name;
}

}  // namespace

StatusOr<TaskFile> ReadTaskFile(const std::string& path) {
  TaskFile file;
  file.name = NameOf(path);
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    const bool is_first = file.examples.empty();
    KVL_ASSIGN_OR_RETURN(file.metric,
                         MetricOf(line, is_first ? std::nullopt : std::optional(file.metric)));
    KVL_ASSIGN_OR_RETURN(TaskExample example, ReadExample(line, file.metric));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  file.takes_shots = file.metric == TaskMetric::kChoice;
  return file;
}

StatusOr<TaskFile> ReadHumanEval(const std::string& path) {
  TaskFile file{"humaneval", TaskMetric::kEditSimilarity, {}};
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    TaskExample example;
    example.stop = "\n\n\n";
    example.more_stops = {kFunctionEnds.begin(), kFunctionEnds.end()};
    example.room_tokens = kProgramTokens;
    KVL_ASSIGN_OR_RETURN(example.prompt, line.Text("prompt"));
    KVL_ASSIGN_OR_RETURN(std::string solution, line.Text("canonical_solution"));
    if (example.prompt.empty()) return line.Refuse("the prompt is empty");
    if (solution.find(example.stop) != std::string::npos) {
      return line.Refuse("the canonical solution holds two blank lines, which end an output");
    }
    for (const std::string& stop : example.more_stops) {
      if (solution.find(stop) == std::string::npos) continue;
      return line.Refuse("a line of the canonical solution begins with {}, which ends an output",
                         nlohmann::json(stop.substr(1)).dump());
    }
    example.references = {std::move(solution)};
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

Status CheckNotEmpty(const std::string& path, const TaskFile& file) {
  if (!file.examples.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{}: has no examples; give one JSON object a line",
               path);
}

std::optional<double> ChanceOf(const TaskFile& file, size_t n_examples) {
  if (file.metric != TaskMetric::kChoice && file.n_options.empty()) return std::nullopt;
  double sum = 0;
  for (size_t i = 0; i < n_examples; ++i) {
    const size_t n = file.n_options.empty() ? file.examples[i].choices.size() : file.n_options[i];
    sum += 1.0 / static_cast<double>(n);
  }
  return sum / static_cast<double>(n_examples);
}

}  // namespace kvlathe
