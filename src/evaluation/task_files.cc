#include "evaluation/task_files.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "evaluation/metrics.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using nlohmann::json;

// One line of a file, and how to complain about it.
struct Line {
  std::string_view path;
  int number;  // from 1
  json value;  // an object

  template <typename... Args>
  Status Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kInvalidArgument, "{}:{}: {}", path, number,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  StatusOr<std::string> Text(const char* field) const {
    const auto it = value.find(field);
    if (it == value.end()) return Refuse("no \"{}\"; give it as a string", field);
    if (!it->is_string()) return Refuse("\"{}\" is no string; put it in quotes", field);
    return it->get<std::string>();
  }
  StatusOr<std::vector<std::string>> Texts(const char* field) const {
    std::vector<std::string> texts;
    const json& list = value.at(field);
    if (list.is_array()) {
      for (const json& text : list) {
        if (!text.is_string()) break;
        texts.push_back(text.get<std::string>());
      }
    }
    if (texts.empty() || texts.size() != list.size()) {
      return Refuse("\"{}\" is not a list of one or more strings", field);
    }
    return texts;
  }
};

Status ForEachLine(const std::string& path, const std::function<Status(const Line&)>& read) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  if (text.starts_with("\x1F\x8B")) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: is compressed; unpack it first (gunzip -k {}) and give the .jsonl file", path,
                 path);
  }
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Line parsed{path, number, json::parse(line, nullptr, /*allow_exceptions=*/false)};
    // The parser takes a NUL byte for the end of its input.
    if (!parsed.value.is_object() || line.find('\0') != std::string_view::npos) {
      return parsed.Refuse("not a JSON object; the file needs one object on every line");
    }
    KVL_RETURN_IF_ERROR(read(parsed));
  }
  return OkStatus();
}

Status CheckNotEmpty(const std::string& path, const TaskFile& file) {
  if (!file.examples.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{}: has no examples; give one JSON object a line",
               path);
}

StatusOr<TaskMetric> MetricOf(const Line& line, std::optional<TaskMetric> so_far) {
  if (!line.value.contains("metric")) {
    const bool has_choices = line.value.contains("choices");
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

Status ReadChoices(const Line& line, TaskExample* example) {
  if (!line.value.contains("choices")) {
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

StatusOr<TaskExample> ReadExample(const Line& line, TaskMetric metric) {
  TaskExample example;
  KVL_ASSIGN_OR_RETURN(example.prompt, line.Text("prompt"));
  if (example.prompt.empty()) return line.Refuse("the prompt is empty; there is nothing to go on");
  if (line.value.contains("references")) {
    KVL_ASSIGN_OR_RETURN(example.references, line.Texts("references"));
  } else {
    KVL_ASSIGN_OR_RETURN(std::string reference, line.Text("reference"));
    example.references.push_back(std::move(reference));
  }
  if (line.value.contains("stop")) {
    KVL_ASSIGN_OR_RETURN(example.stop, line.Text("stop"));
    if (example.stop.empty()) return line.Refuse("\"stop\" is empty; leave it out or give text");
  }
  for (const std::string& reference : example.references) {
    if (reference.find(example.stop) != std::string::npos) {
      return line.Refuse("a reference contains the stop text {}, so no output can equal it",
                         json(example.stop).dump());
    }
    if (metric == TaskMetric::kFinalAnswer && !FinalAnswer(reference).has_value()) {
      return line.Refuse("a reference has no number, which metric final_answer compares");
    }
  }
  if (metric == TaskMetric::kChoice) {
    KVL_RETURN_IF_ERROR(ReadChoices(line, &example));
  } else if (line.value.contains("choices")) {
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

// Without calculator annotations and without blank lines, which would end an output.
std::string PlainAnswer(std::string text) {
  size_t begin = 0;
  while ((begin = text.find("<<", begin)) != std::string::npos) {
    const size_t end = text.find(">>", begin);
    if (end == std::string::npos) break;
    text.erase(begin, end + 2 - begin);
  }
  while ((begin = text.find("\n\n")) != std::string::npos) text.erase(begin, 1);
  return text;
}

struct SolvedQuestion {
  std::string question;
  std::string answer;
};

StatusOr<SolvedQuestion> ReadSolvedQuestion(const Line& line) {
  SolvedQuestion solved;
  KVL_ASSIGN_OR_RETURN(solved.question, line.Text("question"));
  KVL_ASSIGN_OR_RETURN(std::string answer, line.Text("answer"));
  if (solved.question.empty()) return line.Refuse("the question is empty");
  const size_t mark = answer.rfind("####");
  if (mark == std::string::npos || !FinalAnswer(answer.substr(mark)).has_value()) {
    return line.Refuse("the answer does not end in \"#### NUMBER\"; give it as GSM8K does");
  }
  solved.answer = PlainAnswer(std::move(answer));
  return solved;
}

std::vector<std::string_view> Blocks(std::string_view text) {
  std::vector<std::string_view> blocks;
  while (!text.empty()) {
    const size_t end = std::min(text.find("\n\n"), text.size());
    std::string_view block = text.substr(0, end);
    text.remove_prefix(std::min(end + 2, text.size()));
    while (block.starts_with('\n')) block.remove_prefix(1);
    while (block.ends_with('\n')) block.remove_suffix(1);
    if (!block.empty()) blocks.push_back(block);
  }
  return blocks;
}

std::string_view SecondLine(std::string_view block) {
  const size_t end = block.find('\n');
  if (end == std::string_view::npos) return {};
  block.remove_prefix(end + 1);
  return block.substr(0, block.find('\n'));
}

// "Question:" of "Question: what ...", or nothing when the text does not open in a short label.
std::string_view LabelOf(std::string_view text) {
  constexpr size_t kLongestLabel = 20;
  const size_t colon = text.substr(0, text.find('\n')).find(':');
  return colon < kLongestLabel ? text.substr(0, colon + 1) : std::string_view();
}

StatusOr<FewShots> ParsePromptFile(const std::string& path, std::string_view text) {
  const std::vector<std::string_view> blocks = Blocks(text);
  if (blocks.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: has no solved questions", path);
  }
  const std::string_view cue_line = SecondLine(blocks[0]);
  const std::string_view label = LabelOf(blocks[0]), answer_label = LabelOf(cue_line);
  FewShots shots{"", std::string(label), ""};
  bool share_line = blocks.size() > 1;  // one block alone cannot tell a cue from an answer
  bool share_label = !answer_label.empty();
  for (const std::string_view block : blocks) {
    if (label.empty() || !block.starts_with(label) || SecondLine(block).empty()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: block \"{}\" is not a question line and an answer; write \"Q: ...\", then "
                   "\"A: ...\", with a blank line between questions",
                   path, block.substr(0, std::min<size_t>(30, block.find('\n'))));
    }
    share_line &= SecondLine(block) == cue_line;
    share_label &= SecondLine(block).starts_with(answer_label);
    shots.text += std::string(block) + "\n\n";
  }
  if (!share_line && !share_label) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: the answers do not open alike; start each with the same label, as in "
                 "\"A: ...\"",
                 path);
  }
  shots.cue = share_line ? std::string(cue_line) + "\n" : std::string(answer_label);
  return shots;
}

}  // namespace

StatusOr<TaskFile> ReadTaskFile(const std::string& path) {
  TaskFile file;
  file.name = NameOf(path);
  KVL_RETURN_IF_ERROR(ForEachLine(path, [&](const Line& line) -> Status {
    const bool is_first = file.examples.empty();
    KVL_ASSIGN_OR_RETURN(file.metric,
                         MetricOf(line, is_first ? std::nullopt : std::optional(file.metric)));
    KVL_ASSIGN_OR_RETURN(TaskExample example, ReadExample(line, file.metric));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

StatusOr<FewShots> ReadFewShots(const std::string& path) {
  if (!path.ends_with(".jsonl")) {
    KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    return ParsePromptFile(path, text);
  }
  FewShots shots;
  int n_shots = 0;
  KVL_RETURN_IF_ERROR(ForEachLine(path, [&](const Line& line) -> Status {
    if (n_shots == kGsm8kShots) return OkStatus();
    KVL_ASSIGN_OR_RETURN(const SolvedQuestion solved, ReadSolvedQuestion(line));
    shots.text += fmt::format("Q: {}\nA: {}\n\n", solved.question, solved.answer);
    ++n_shots;
    return OkStatus();
  }));
  if (n_shots == 0) {
    return Error(StatusCode::kInvalidArgument, "{}: has no solved questions", path);
  }
  return shots;
}

StatusOr<TaskFile> ReadGsm8k(const std::string& path, const FewShots& shots) {
  TaskFile file{"gsm8k", TaskMetric::kFinalAnswer, {}};
  KVL_RETURN_IF_ERROR(ForEachLine(path, [&](const Line& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const SolvedQuestion solved, ReadSolvedQuestion(line));
    TaskExample example;
    example.prompt =
        fmt::format("{}{} {}\n{}", shots.text, shots.question, solved.question, shots.cue);
    // After a cue that is a line of its own no space follows.
    example.references = {(shots.cue.ends_with('\n') ? "" : " ") + solved.answer};
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

StatusOr<TaskFile> ReadHumanEval(const std::string& path) {
  TaskFile file{"humaneval", TaskMetric::kEditSimilarity, {}};
  KVL_RETURN_IF_ERROR(ForEachLine(path, [&](const Line& line) -> Status {
    TaskExample example;
    example.stop = "\n\n\n";
    KVL_ASSIGN_OR_RETURN(example.prompt, line.Text("prompt"));
    KVL_ASSIGN_OR_RETURN(std::string solution, line.Text("canonical_solution"));
    if (example.prompt.empty()) return line.Refuse("the prompt is empty");
    if (solution.find(example.stop) != std::string::npos) {
      return line.Refuse("the canonical solution holds two blank lines, which end an output");
    }
    example.references = {std::move(solution)};
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

}  // namespace kvlathe
