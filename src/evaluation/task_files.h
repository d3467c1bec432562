// Tasks that come from files: GSM8K, HumanEval and a plain form for anything else. All are JSON
// Lines; blank lines are passed over.
//
// Errors: kNotFound when there is no such file, kInvalidArgument with file and line when a line is
// not what the form asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {

struct TaskFile {
  std::string name;  // "gsm8k", "humaneval", or the file's name without folder and ".jsonl"
  TaskMetric metric = TaskMetric::kExactMatch;
  std::vector<TaskExample> examples;  // at least one
};

// {"prompt", "references": [...] or "reference", "metric", "choices", "stop"}; others are passed
// over. "metric" is a name of metrics.h, the same on every line that has one (default exact_match,
// and choice where the first line has choices); "choices" go with the metric choice only and hold
// references[0]. "stop" (default "\n\n") must not be in a reference.
StatusOr<TaskFile> ReadTaskFile(const std::string& path);

// Solved questions that stand before the one asked, and the form that they ask in.
struct FewShots {
  std::string text;             // ends in a blank line, unless it is empty
  std::string question = "Q:";  // what opens a question
  std::string cue = "A:";       // the line after the question, after which the answer follows
};

inline constexpr int kGsm8kShots = 8;

// From a prompt file: blocks with a blank line between them, each a question line ("Q: ...",
// "Question: ...") and an answer. The cue is the second line where all blocks share it ("Let's
// think step by step"), else the label that opens it ("A:"). From a .jsonl file in the form of
// GSM8K's train set: its first 8 lines.
StatusOr<FewShots> ReadFewShots(const std::string& path);

// {"question", "answer"}, where the answer ends in "#### 18". Metric final_answer, stop "\n\n".
// Calculator annotations ("<<3*4=12>>") and blank lines are taken out of answers.
StatusOr<TaskFile> ReadGsm8k(const std::string& path, const FewShots& shots);

// {"task_id", "prompt", "canonical_solution", "test", "entry_point"}. Nothing is run: the metric is
// the edit similarity to the canonical solution, stop "\n\n\n".
StatusOr<TaskFile> ReadHumanEval(const std::string& path);

}  // namespace kvlathe
