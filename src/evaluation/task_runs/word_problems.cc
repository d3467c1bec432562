#include "evaluation/task_runs/word_problems.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/task_lines.h"
#include "io/files.h"

namespace kvlathe {
namespace {

// A model may take a longer way to the answer than the reference does.
constexpr int kWayTokens = 512;

// Blank lines would end an output, and a shot.
std::string WithoutBlankLines(std::string text) {
  size_t begin = 0;
  while ((begin = text.find("\n\n", begin)) != std::string::npos) text.erase(begin, 1);
  return text;
}

// Without calculator annotations and blank lines.
std::string PlainAnswer(std::string text) {
  size_t begin = 0;
  while ((begin = text.find("<<", begin)) != std::string::npos) {
    const size_t end = text.find(">>", begin);
    if (end == std::string::npos) break;
    text.erase(begin, end + 2 - begin);
  }
  return WithoutBlankLines(std::move(text));
}

struct SolvedQuestion {
  std::string question;
  std::string answer;
  std::vector<std::string> options;
};

StatusOr<SolvedQuestion> ReadGsm8kLine(const TaskLine& line) {
  SolvedQuestion solved;
  KVL_ASSIGN_OR_RETURN(solved.question, line.FullText("question"));
  KVL_ASSIGN_OR_RETURN(std::string answer, line.Text("answer"));
  const size_t mark = answer.rfind("####");
  if (mark == std::string::npos || !FinalAnswer(answer.substr(mark)).has_value()) {
    return line.Refuse("the answer does not end in \"#### NUMBER\"; give it as GSM8K does");
  }
  solved.answer = PlainAnswer(std::move(answer));
  return solved;
}

StatusOr<SolvedQuestion> ReadAquaLine(const TaskLine& line) {
  SolvedQuestion solved;
  KVL_ASSIGN_OR_RETURN(solved.question, line.FullText("question"));
  KVL_ASSIGN_OR_RETURN(solved.options, line.Texts("options"));
  KVL_ASSIGN_OR_RETURN(const std::string rationale, line.Text("rationale"));
  KVL_ASSIGN_OR_RETURN(const std::string correct, line.Text("correct"));
  const size_t n_options = solved.options.size();
  if (n_options < 2 || n_options > 5) {
    return line.Refuse("{} options; AQuA's questions have 2 to 5, \"A)...\" to \"E)...\"",
                       n_options);
  }
  for (size_t i = 0; i < n_options; ++i) {
    const std::string label = {static_cast<char>('A' + i), ')'};
    if (!solved.options[i].starts_with(label)) {
      return line.Refuse("option {} does not begin with \"{}\"", i + 1, label);
    }
  }
  const char last = static_cast<char>('A' + n_options - 1);
  if (correct.size() != 1 || correct[0] < 'A' || correct[0] > last) {
    return line.Refuse("\"correct\" is \"{}\"; give the letter of an option, A to {}", correct,
                       last);
  }
  solved.answer = WithoutBlankLines(std::string(Trimmed(rationale)));
  if (!solved.answer.empty()) solved.answer += "\n";
  solved.answer += "The answer is " + correct + ").";
  return solved;
}

// A question as it is asked, without shots.
std::string Ask(const SolvedQuestion& solved, const FewShots& form) {
  std::string prompt = form.question + " " + solved.question + "\n";
  if (!solved.options.empty()) prompt += form.options + "\n";
  for (const std::string& option : solved.options) prompt += option + "\n";
  return prompt + form.cue;
}

// After a cue that is a line of its own no space follows.
std::string AnswerAfter(const SolvedQuestion& solved, const FewShots& form) {
  return (form.cue.ends_with('\n') ? "" : " ") + solved.answer;
}

using LineReader = StatusOr<SolvedQuestion> (*)(const TaskLine&);

Status NoSolvedQuestions(const std::string& path) {
  return Error(StatusCode::kInvalidArgument, "{}: has no solved questions", path);
}

// The first lines of a set in the given form.
StatusOr<FewShots> ShotsOfSet(const std::string& path, LineReader read, FewShots form) {
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    if (form.count == kFileShots) return OkStatus();
    KVL_ASSIGN_OR_RETURN(const SolvedQuestion solved, read(line));
    form.text += Ask(solved, form) + AnswerAfter(solved, form) + "\n\n";
    ++form.count;
    return OkStatus();
  }));
  if (form.count == 0) return NoSolvedQuestions(path);
  return form;
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
  TakeLine(&block);
  return block.substr(0, block.find('\n'));
}

bool IsOption(std::string_view line) {
  return line.size() >= 2 && line[0] >= 'A' && line[0] <= 'E' && line[1] == ')';
}

// The line behind the options that follow the second line; empty without options.
std::string_view LineAfterOptions(std::string_view block) {
  TakeLine(&block);
  if (!block.empty()) TakeLine(&block);
  int n_options = 0;
  for (; IsOption(block); ++n_options) TakeLine(&block);
  return n_options == 0 ? std::string_view() : block.substr(0, block.find('\n'));
}

// "Question:" of "Question: what ...", or nothing when the text does not open in a short label.
std::string_view LabelOf(std::string_view text) {
  constexpr size_t kLongestLabel = 20;
  const size_t colon = text.substr(0, text.find('\n')).find(':');
  return colon < kLongestLabel ? text.substr(0, colon + 1) : std::string_view();
}

// What the blocks of a prompt file consist of.
struct BlockForm {
  std::string_view (*cue_line)(std::string_view block);
  std::string_view description;
};
constexpr BlockForm kNumberBlock = {
    SecondLine, "is not a question line and an answer; write \"Q: ...\", then \"A: ...\""};
constexpr BlockForm kOptionBlock = {
    LineAfterOptions,
    "is not a question with options and an answer; write \"Question: ...\", \"Option:\", a line "
    "for each of \"A)...\" to \"E)...\", then the answer"};

StatusOr<FewShots> ParsePromptFile(const std::string& path, std::string_view text,
                                   const BlockForm& form) {
  const std::vector<std::string_view> blocks = Blocks(text);
  if (blocks.empty()) return NoSolvedQuestions(path);
  const std::string_view cue_line = form.cue_line(blocks[0]);
  const std::string_view label = LabelOf(blocks[0]), answer_label = LabelOf(cue_line);
  FewShots shots{.count = static_cast<int>(blocks.size()), .question = std::string(label)};
  bool share_line = blocks.size() > 1;  // one block alone cannot tell a cue from an answer
  bool share_label = !answer_label.empty();
  for (const std::string_view block : blocks) {
    const std::string_view line = form.cue_line(block);
    if (label.empty() || !block.starts_with(label) || line.empty()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: block \"{}\" {}, with a blank line between questions", path,
                   block.substr(0, std::min<size_t>(30, block.find('\n'))), form.description);
    }
    share_line &= line == cue_line;
    share_label &= line.starts_with(answer_label);
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

// Appends every line of the file as an example of `file`.
StatusOr<TaskFile> ReadSet(const std::string& path, LineReader read, const FewShots& shots,
                           TaskFile file) {
  file.takes_shots = true;
  file.n_shots = shots.count;
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const SolvedQuestion solved, read(line));
    TaskExample example;
    example.prompt = shots.text + Ask(solved, shots);
    example.references = {AnswerAfter(solved, shots)};
    example.room_tokens = kWayTokens;
    file.examples.push_back(std::move(example));
    if (!solved.options.empty()) file.n_options.push_back(static_cast<int>(solved.options.size()));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  return file;
}

}  // namespace

StatusOr<FewShots> ReadFewShots(const std::string& path) {
  if (path.ends_with(".jsonl")) return ShotsOfSet(path, ReadGsm8kLine, {});
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const std::vector<std::string_view> blocks = Blocks(text);
  const auto has_options = [](std::string_view block) { return !LineAfterOptions(block).empty(); };
  if (!blocks.empty() && std::all_of(blocks.begin(), blocks.end(), has_options)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: its questions have options, as AQuA's; GSM8K's answers are numbers", path);
  }
  return ParsePromptFile(path, text, kNumberBlock);
}

StatusOr<TaskFile> ReadGsm8k(const std::string& path, const FewShots& shots) {
  return ReadSet(path, ReadGsm8kLine, shots, {.name = "gsm8k", .metric = TaskMetric::kFinalAnswer});
}

FewShots AquaForm() {
  return {.question = "Question:", .options = "Option:", .cue = "Let's think step by step\n"};
}

StatusOr<FewShots> ReadAquaShots(const std::string& path) {
  if (path.ends_with(".json") || path.ends_with(".jsonl")) {
    return ShotsOfSet(path, ReadAquaLine, AquaForm());
  }
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  KVL_ASSIGN_OR_RETURN(FewShots shots, ParsePromptFile(path, text, kOptionBlock));
  shots.options = SecondLine(shots.text);
  return shots;
}

StatusOr<TaskFile> ReadAqua(const std::string& path, const FewShots& shots) {
  return ReadSet(path, ReadAquaLine, shots, {.name = "aqua", .metric = TaskMetric::kOptionLetter});
}

}  // namespace kvlathe
