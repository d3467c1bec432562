// Tasks may come from files: here is what every such task has, and the plain form for any of them.
// The forms of published data sets are in choice_files.h, word_problems.h, big_bench_hard.h and
// longbench.h. Blank lines are passed over.
//
// Errors of all readers: kNotFound when there is no such file, kInvalidArgument with file and line
// when a line is not what the form asks for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {

struct TaskFile {
  std::string name;  // "gsm8k", "humaneval", or the file's name without folder and ".jsonl"
  TaskMetric metric = TaskMetric::kExactMatch;
  std::vector<TaskExample> examples;  // at least one
  // An example with its first reference (of a choice, the right one) behind the prompt reads as a
  // solved question, so that it can stand before another one (task_shots.h).
  bool takes_shots = false;
  int n_shots = 0;  // that every prompt has already
  // A prompt that is longer than it may be is asked without its middle (longbench.h).
  bool cuts_middle = false;
  // For kChoice: the score that counts the choices' lengths leads in what is published of the set.
  bool norm_leads = false;
  // Of how many options each example's answer is one, where those are not its choices
  // [examples.size()]; else empty.
  std::vector<int> n_options;
};

// {"prompt", "references": [...] or "reference", "metric", "choices", "stop"}; others are passed
// over. "metric" is a name of metrics.h, the same on every line that has one (default exact_match,
// and choice where the first line has choices); "choices" go with the metric choice only and hold
// references[0]. "stop" (default "\n\n") must not be in a reference.
StatusOr<TaskFile> ReadTaskFile(const std::string& path);

// {"task_id", "prompt", "canonical_solution", "test", "entry_point"}. Nothing is run: the metric is
// the edit similarity to the canonical solution. An output ends where its function does: before two
// blank lines, or a line that begins with what begins no line of a function's body ("def ",
// "class ", "if ", "print(", "@", "#", "```"). It may have 512 tokens, as programs that are run
// elsewhere may be longer than the solution.
StatusOr<TaskFile> ReadHumanEval(const std::string& path);

// For readers: kInvalidArgument when a file turned out to have no examples.
Status CheckNotEmpty(const std::string& path, const TaskFile& file);

// What blind choice scores on the first `n_examples`; without a value where that is not known.
std::optional<double> ChanceOf(const TaskFile& file, size_t n_examples);

}  // namespace kvlathe
