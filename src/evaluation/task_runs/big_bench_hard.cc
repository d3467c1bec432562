#include "evaluation/task_runs/big_bench_hard.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "evaluation/metrics.h"
#include "evaluation/task_runs/task_lines.h"

namespace kvlathe {
namespace {

constexpr int kChainTokens = 512;
constexpr std::string_view kQuestion = "Q:", kCue = "A: Let's think step by step.";
constexpr std::string_view kNextQuestion = "\nQ:";

// A solved question of a prompt file while its lines are read.
struct SolvedBlock {
  int line = 0;  // where it begins; 0 before the first
  bool has_cue = false;
  std::string chain;  // what follows the cue
};

Status CheckBlock(const std::string& path, const SolvedBlock& block) {
  const char* what = !block.has_cue ? "has no line \"A: Let's think step by step.\" behind it"
                     : !StatedAnswer(block.chain).has_value()
                         ? "has no answer that ends in \"So the answer is X.\""
                         : nullptr;
  if (block.line == 0 || what == nullptr) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "{}:{}: the question {}; give a prompt file as BIG-Bench Hard publishes it", path,
               block.line, what);
}

// The options that a question lists behind a line "Options:"; 0 without them.
int OptionsOf(std::string_view question) {
  constexpr std::string_view kOptions = "\nOptions:\n";
  const size_t at = question.find(kOptions);
  if (at == std::string_view::npos) return 0;
  question.remove_prefix(at + kOptions.size());
  int n_options = 0;
  while (!question.empty()) n_options += Trimmed(TakeLine(&question)).empty() ? 0 : 1;
  return n_options;
}

StatusOr<nlohmann::json> ParseWhole(const std::string& path, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    return Error(StatusCode::kInvalidArgument, "{}: has a NUL byte, which JSON has not", path);
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::string_view read = std::string_view(text).substr(0, error.byte);
    const auto line = 1 + std::count(read.begin(), read.end(), '\n');
    const size_t begin = read.rfind('\n') + 1;  // 0 without one
    return Error(StatusCode::kInvalidArgument,
                 "{}:{}: is no JSON from column {} on; give a set as BIG-Bench Hard publishes it",
                 path, line, std::max<size_t>(read.size() - begin, 1));
  }
}

// The text of a field, or why there is none.
StatusOr<std::string> FieldOf(const std::string& path, size_t number, const nlohmann::json& example,
                              const char* field) {
  const bool has_text = example.is_object() && example.contains(field) &&
                        example[field].is_string() &&
                        !Trimmed(example[field].get_ref<const std::string&>()).empty();
  if (has_text) return example[field].get<std::string>();
  return Error(StatusCode::kInvalidArgument,
               "{}: example {} has no \"{}\" with text; BIG-Bench Hard's have \"input\" and "
               "\"target\"",
               path, number, field);
}

std::string NameOfSet(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  return "bbh/" + name;
}

}  // namespace

FewShots BigBenchHardForm() {
  return {.question = std::string(kQuestion), .cue = std::string(kCue) + "\n"};
}

StatusOr<FewShots> ReadBigBenchHardShots(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadUnpackedFile(path));
  std::string_view rest = text;
  int number = 0;
  for (bool is_ruled = false; !is_ruled; ++number) {
    if (rest.empty()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: has no line \"-----\", behind which the prompt begins; give a prompt file "
                   "as BIG-Bench Hard publishes it",
                   path);
    }
    is_ruled = TakeLine(&rest) == "-----";
  }
  FewShots shots = BigBenchHardForm();
  shots.text = std::string(Trimmed(rest)) + "\n\n";
  SolvedBlock block;
  while (!rest.empty()) {
    const std::string_view line = TakeLine(&rest);
    ++number;
    if (line.starts_with(kQuestion)) {
      KVL_RETURN_IF_ERROR(CheckBlock(path, block));
      block = {.line = number};
      ++shots.count;
    } else if (block.has_cue) {
      block.chain.append(line).append("\n");
    } else {
      block.has_cue = line == kCue;
    }
  }
  KVL_RETURN_IF_ERROR(CheckBlock(path, block));
  if (shots.count > 0) return shots;
  return Error(StatusCode::kInvalidArgument, "{}: has no solved questions (\"Q: ...\")", path);
}

StatusOr<TaskFile> ReadBigBenchHard(const std::string& path, const FewShots& shots) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadUnpackedFile(path));
  KVL_ASSIGN_OR_RETURN(const nlohmann::json set, ParseWhole(path, text));
  if (!set.is_object() || !set.contains("examples") || !set["examples"].is_array()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: has no list \"examples\"; give a set as BIG-Bench Hard publishes it", path);
  }
  TaskFile file{.name = NameOfSet(path), .metric = TaskMetric::kStatedAnswer};
  file.takes_shots = true;
  file.n_shots = shots.count;
  for (const nlohmann::json& given : set["examples"]) {
    const size_t number = file.examples.size() + 1;
    KVL_ASSIGN_OR_RETURN(const std::string input, FieldOf(path, number, given, "input"));
    KVL_ASSIGN_OR_RETURN(const std::string target, FieldOf(path, number, given, "target"));
    TaskExample example{.stop = std::string(kNextQuestion), .room_tokens = kChainTokens};
    example.prompt = shots.text + shots.question + " " + input + "\n" + shots.cue;
    example.references = {"So the answer is " + target + "."};
    if (target.find('\n') != std::string::npos ||
        !StatedAnswer(example.references[0]).has_value()) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: the \"target\" of example {} is no answer of one line", path, number);
    }
    file.examples.push_back(std::move(example));
    if (const int n_options = OptionsOf(input); n_options > 0) file.n_options.push_back(n_options);
  }
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  if (file.n_options.size() < file.examples.size()) file.n_options.clear();
  return file;
}

}  // namespace kvlathe
