#include "evaluation/task_runs/choice_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "evaluation/task_runs/task_lines.h"
#include "io/files.h"

namespace kvlathe {
namespace {

struct ListedQuestion {
  std::string question;
  std::vector<std::string> options;
  int64_t answer = -1;  // index of an option, not checked yet
};

Status CheckOptions(const TaskLine& line, const ListedQuestion& listed) {
  const size_t n = listed.options.size();
  if (n < 2) return line.Refuse("one choice is none; give two or more");
  for (size_t i = 0; i < n; ++i) {
    if (Trimmed(listed.options[i]).empty()) {
      return line.Refuse("choice {} is empty, so it has no likelihood; give it text", i + 1);
    }
  }
  if (listed.answer < 0 || listed.answer >= static_cast<int64_t>(n)) {
    return line.Refuse(
        "the right choice is number {}, counted from 0, and there are {}; take a set with answers",
        listed.answer, n);
  }
  return OkStatus();
}

// The options as choices behind a prompt.
StatusOr<TaskExample> WeighedBehind(const TaskLine& line, std::string_view prompt,
                                    const ListedQuestion& listed) {
  KVL_RETURN_IF_ERROR(CheckOptions(line, listed));
  TaskExample example;
  example.prompt = prompt;
  for (const std::string& option : listed.options) example.choices.push_back(" " + option);
  example.answer = static_cast<int>(listed.answer);
  example.references = {example.choices[example.answer]};
  return example;
}

TaskFile ChoiceFile(const char* name, bool norm_leads) {
  return {.name = name,
          .metric = TaskMetric::kChoice,
          .examples = {},
          .takes_shots = true,
          .norm_leads = norm_leads,
          .n_options = {}};
}

// ---- HellaSwag

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  for (size_t pos = 0; (pos = text->find(from, pos)) != std::string::npos; pos += to.size()) {
    text->replace(pos, from.size(), to);
  }
}

// The texts come from WikiHow and from captions, with traces of how they were cut. Each step is
// done once, in this order, so that the texts are those that others evaluate.
std::string Cleaned(std::string_view dirty) {
  std::string text(Trimmed(dirty));
  ReplaceAll(" [title]", ". ", &text);
  for (size_t begin = 0; (begin = text.find('[', begin)) != std::string::npos;) {
    const size_t end = text.find(']', begin);
    if (end == std::string::npos) break;
    if (text.find('\n', begin) < end) {
      ++begin;  // brackets on two lines are not a pair
    } else {
      text.erase(begin, end + 1 - begin);
    }
  }
  ReplaceAll("  ", " ", &text);
  return text;
}

// The first letter upper case and the others lower case, in ASCII.
std::string Capitalized(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  }
  return text;
}

StatusOr<TaskExample> HellaSwagExample(const TaskLine& line, ListedQuestion listed) {
  for (std::string& ending : listed.options) ending = Cleaned(ending);
  const std::string context = Cleaned(listed.question);
  const std::string prompt = context.substr(0, context.find_last_not_of(' ') + 1);
  if (prompt.empty()) return line.Refuse("the context is empty; give it text");
  return WeighedBehind(line, prompt, listed);
}

StatusOr<ListedQuestion> ReadHellaSwagLine(const TaskLine& line) {
  ListedQuestion listed;
  KVL_ASSIGN_OR_RETURN(const std::string activity, line.Text("activity_label"));
  std::string context;
  if (line.Has("ctx_a")) {
    KVL_ASSIGN_OR_RETURN(const std::string first, line.Text("ctx_a"));
    KVL_ASSIGN_OR_RETURN(const std::string second, line.Text("ctx_b"));
    context = first + " " + Capitalized(second);
  } else {
    KVL_ASSIGN_OR_RETURN(context, line.FullText("ctx"));
  }
  listed.question = activity + ": " + context;
  KVL_ASSIGN_OR_RETURN(listed.options, line.Texts("endings"));
  KVL_ASSIGN_OR_RETURN(listed.answer, line.Integer("label"));
  return listed;
}

// Six lines a task.
Status ReadHellaSwagText(const std::string& path, std::string_view text, TaskFile* file) {
  constexpr int kEndings = 4, kLines = 2 + kEndings;
  for (int number = 1; !Trimmed(text).empty(); number += kLines) {
    std::array<std::string_view, kLines> lines;
    for (int i = 0; i < kLines; ++i) {
      const TaskLine line{path, number + i, {}};
      if (text.empty()) {
        return line.Refuse(
            "the file ends inside a task; a task has six lines: context, label, four endings");
      }
      lines[i] = Trimmed(TakeLine(&text));
      if (lines[i].empty()) {
        return line.Refuse(
            "an empty line; a task has six with text: context, label, four endings, and the next "
            "one follows at once");
      }
    }
    const TaskLine label{path, number + 1, {}};
    if (lines[1].size() != 1 || lines[1][0] < '0' || lines[1][0] >= '0' + kEndings) {
      return label.Refuse("\"{}\" where the label of a task should stand, 0 to {}",
                          lines[1].substr(0, 30), kEndings - 1);
    }
    ListedQuestion listed{std::string(lines[0]), {}, lines[1][0] - '0'};
    for (int i = 2; i < kLines; ++i) listed.options.emplace_back(lines[i]);
    KVL_ASSIGN_OR_RETURN(TaskExample example,
                         HellaSwagExample({path, number, {}}, std::move(listed)));
    file->examples.push_back(std::move(example));
  }
  return OkStatus();
}

// ---- PIQA

// Labels that have a file of their own, one on every line.
StatusOr<std::vector<int64_t>> ReadLabels(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<int64_t> labels;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = Trimmed(TakeLine(&rest));
    if (line != "0" && line != "1") {
      return Error(StatusCode::kInvalidArgument, "{}:{}: \"{}\" is no label; give 0 or 1", path,
                   number, line.substr(0, 30));
    }
    labels.push_back(line[0] - '0');
  }
  return labels;
}

// Where the labels of a file without them are.
std::string LabelsPath(std::string path) {
  if (path.ends_with(".jsonl")) path.resize(path.size() - 6);
  return path + "-labels.lst";
}

// Labels of PIQA: on the lines or, read when the first line has none, in a file beside them.
class PiqaLabels {
 public:
  explicit PiqaLabels(const std::string& path) : path_(LabelsPath(path)) {}

  // Of example `index` on the given line.
  StatusOr<int64_t> Of(const TaskLine& line, size_t index) {
    if (line.Has("label")) return line.Integer("label");
    if (!was_read_) {
      if (!FileExists(path_)) {
        return line.Refuse("no \"label\", and there is no {} with a label for every line", path_);
      }
      KVL_ASSIGN_OR_RETURN(labels_, ReadLabels(path_));
      was_read_ = true;
    }
    if (index < labels_.size()) return labels_[index];
    return line.Refuse("example {} has no label: {} has {}; give one for every line", index + 1,
                       path_, labels_.size());
  }
  // A file with more labels belongs to other questions.
  Status CheckCount(size_t n_examples) const {
    if (!was_read_ || labels_.size() == n_examples) return OkStatus();
    return Error(StatusCode::kInvalidArgument,
                 "{}: has {} labels for {} examples; give one for every line", path_,
                 labels_.size(), n_examples);
  }

 private:
  std::string path_;
  bool was_read_ = false;
  std::vector<int64_t> labels_;
};

// ---- ARC and WinoGrande

// {"centerpiece", "options", "correct_options_idx"}
StatusOr<ListedQuestion> ReadCenterpiece(const TaskLine& line) {
  ListedQuestion listed;
  KVL_ASSIGN_OR_RETURN(listed.question, line.FullText("centerpiece"));
  KVL_ASSIGN_OR_RETURN(listed.options, line.Texts("options"));
  const auto right = line.value.find("correct_options_idx");
  if (right == line.value.end() || !right->is_array() || right->size() != 1) {
    return line.Refuse("\"correct_options_idx\" is not a list of one index");
  }
  const TaskLine only{line.path, line.number, {{"correct_options_idx", right->at(0)}}};
  KVL_ASSIGN_OR_RETURN(listed.answer, only.Integer("correct_options_idx"));
  return listed;
}

StatusOr<ListedQuestion> ReadArcLine(const TaskLine& line) {
  if (line.Has("centerpiece")) return ReadCenterpiece(line);
  ListedQuestion listed;
  KVL_ASSIGN_OR_RETURN(listed.question, line.FullText("question"));
  KVL_ASSIGN_OR_RETURN(const std::string key, line.FullText("answerKey"));
  const auto choices = line.value.find("choices");
  if (choices == line.value.end() || !choices->is_object()) {
    return line.Refuse("\"choices\" is no object with \"text\" and \"label\"");
  }
  const TaskLine inner{line.path, line.number, *choices};
  KVL_ASSIGN_OR_RETURN(listed.options, inner.Texts("text"));
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string> labels, inner.Texts("label"));
  if (labels.size() != listed.options.size()) {
    return line.Refuse("{} labels for {} choices; give one for each", labels.size(),
                       listed.options.size());
  }
  const auto right = std::find(labels.begin(), labels.end(), key);
  if (right == labels.end()) return line.Refuse("no choice has the label \"{}\"", key);
  listed.answer = right - labels.begin();
  return listed;
}

StatusOr<ListedQuestion> ReadWinoGrandeLine(const TaskLine& line) {
  if (line.Has("centerpiece")) return ReadCenterpiece(line);
  ListedQuestion listed;
  KVL_ASSIGN_OR_RETURN(listed.question, line.FullText("sentence"));
  for (const char* field : {"option1", "option2"}) {
    KVL_ASSIGN_OR_RETURN(std::string option, line.Text(field));
    listed.options.push_back(std::move(option));
  }
  KVL_ASSIGN_OR_RETURN(const int64_t answer, line.Integer("answer"));
  if (answer < 1 || answer > 2) return line.Refuse("\"answer\" is {}; give 1 or 2", answer);
  listed.answer = answer - 1;
  return listed;
}

StatusOr<TaskExample> WinoGrandeExample(const TaskLine& line, const ListedQuestion& listed) {
  KVL_RETURN_IF_ERROR(CheckOptions(line, listed));
  const std::string_view sentence = listed.question;
  const size_t blank = sentence.find('_');
  if (blank == std::string_view::npos) {
    return line.Refuse("the sentence has no \"_\", where the options would go");
  }
  const std::string_view before = sentence.substr(0, blank);
  const std::string_view rest = Trimmed(sentence.substr(blank + 1));
  if (rest.empty()) {
    return line.Refuse("nothing follows \"_\", and what follows is what is weighed");
  }
  TaskExample example;
  example.prompt = before.substr(0, before.find_last_not_of(' ') + 1);
  for (const std::string& option : listed.options) {
    example.choice_prompts.push_back(fmt::format("{}{}", before, option));
    example.choices.push_back(fmt::format(" {}", rest));
  }
  example.answer = static_cast<int>(listed.answer);
  example.references = {example.choices[example.answer]};
  return example;
}

}  // namespace

StatusOr<TaskFile> ReadHellaSwag(const std::string& path) {
  TaskFile file = ChoiceFile("hellaswag", /*norm_leads=*/true);
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadUnpackedFile(path));
  if (Trimmed(text).starts_with('{')) {
    KVL_RETURN_IF_ERROR(ForEachTaskLine(path, text, [&](const TaskLine& line) -> Status {
      KVL_ASSIGN_OR_RETURN(ListedQuestion listed, ReadHellaSwagLine(line));
      KVL_ASSIGN_OR_RETURN(TaskExample example, HellaSwagExample(line, std::move(listed)));
      file.examples.push_back(std::move(example));
      return OkStatus();
    }));
  } else {
    KVL_RETURN_IF_ERROR(ReadHellaSwagText(path, text, &file));
  }
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

StatusOr<TaskFile> ReadPiqa(const std::string& path) {
  TaskFile file = ChoiceFile("piqa", /*norm_leads=*/true);
  PiqaLabels labels(path);
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    ListedQuestion listed;
    KVL_ASSIGN_OR_RETURN(const std::string goal, line.FullText("goal"));
    for (const char* field : {"sol1", "sol2"}) {
      KVL_ASSIGN_OR_RETURN(std::string solution, line.Text(field));
      listed.options.push_back(std::move(solution));
    }
    KVL_ASSIGN_OR_RETURN(listed.answer, labels.Of(line, file.examples.size()));
    KVL_ASSIGN_OR_RETURN(TaskExample example,
                         WeighedBehind(line, fmt::format("Question: {}\nAnswer:", goal), listed));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  KVL_RETURN_IF_ERROR(labels.CheckCount(file.examples.size()));
  return file;
}

StatusOr<TaskFile> ReadArc(const std::string& path) {
  TaskFile file = ChoiceFile("arc", /*norm_leads=*/true);
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const ListedQuestion listed, ReadArcLine(line));
    KVL_ASSIGN_OR_RETURN(
        TaskExample example,
        WeighedBehind(line, fmt::format("Question: {}\nAnswer:", listed.question), listed));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

StatusOr<TaskFile> ReadWinoGrande(const std::string& path) {
  TaskFile file = ChoiceFile("winogrande", /*norm_leads=*/false);
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const ListedQuestion listed, ReadWinoGrandeLine(line));
    KVL_ASSIGN_OR_RETURN(TaskExample example, WinoGrandeExample(line, listed));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

}  // namespace kvlathe
